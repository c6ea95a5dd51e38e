"""The entry of `ts-stateful`, its exit statuses, and the commands that talk to a server."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, cast

import msgspec

from ts_stateful.cli.admin import COMMANDS, administer_server
from ts_stateful.cli.chat import NAMES, ChatLoop, ChatOptions
from ts_stateful.cli.chat.files import FileRefused
from ts_stateful.cli.chat.keyboard import lines_of
from ts_stateful.cli.chat.words import greeting, reason, waiting
from ts_stateful.cli.check import check
from ts_stateful.cli.doctor import examine
from ts_stateful.cli.init import init
from ts_stateful.cli.pack import pack
from ts_stateful.cli.parser import build_parser
from ts_stateful.cli.plan import plan
from ts_stateful.cli.terminal import Terminal, replace_closed_streams
from ts_stateful.cli.variables import misspelled
from ts_stateful.cli.web.saved import key_prefix
from ts_stateful.client import (
    MAX_BODY_BYTES,
    ClientError,
    PromptOptions,
    Reply,
    RetryPolicy,
    Server,
    ServerUnreachable,
    Session,
    connect,
)
from ts_stateful.config.schema import ConfigError
from ts_stateful.config.sizes import ModelUnknown
from ts_stateful.memory import without_collections
from ts_stateful.packing import PackingFailed
from ts_stateful.plan import PlanRefused
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.serving.ports import Ports

__all__ = ["main"]

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130
_REFUSALS = (ConfigError, FileRefused, ModelUnknown, PackingFailed, PlanRefused)
_REMEDIES = {  # by a part of the reason why a server cannot be talked to
    "CERTIFICATE_VERIFY_FAILED": "trust its certificate, or that of its issuer, with --ca-file",
    "WRONG_VERSION_NUMBER": "it has no TLS: name it with http:// or grpc://",
    "Server disconnected without sending": "if it has TLS, name it with https://",
    "Socket closed": "if it has TLS, name it with grpcs://",
    "": "start one with `ts-stateful serve`, or name yours with --url",
}
# A server that is down is reported at once. One retry, as TorchServe may reset the connection that asks for its profile.
_IMPATIENT = RetryPolicy(max_retries=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. Wrong usage and `--help` raise `SystemExit`, as argparse does."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        replace_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")  # an encoding may lack characters
        for sentence in misspelled(os.environ):
            Terminal(sys.stderr).line(f"warning: {sentence}")
        return _run(build_parser().parse_args(arguments), arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of the output closed it. Python would report that again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except (*_REFUSALS, ClientError, OSError, StatefulError) as error:
        return _fail(reason(error))
    except ValueError as error:  # a malformed URL
        return _fail(str(error), _USAGE)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if options.command in ("check", "pack"):
        with without_collections():  # they take a third of the time where transformers is installed
            if options.command == "pack":
                return pack(options)
            return _OK if check(options.file, options.model, as_json=options.json) else _FAILED
    if options.command in ("plan", "init"):
        plan(options, arguments) if options.command == "plan" else init(options)
        return _OK
    if options.command == "serve":
        return _serve(options)
    if options.command == "doctor":
        return _OK if examine(options) else _FAILED
    if options.command in COMMANDS:
        return _OK if administer_server(options) else _FAILED
    return _talk(options)


def _serve(options: argparse.Namespace) -> int:
    try:
        from ts_stateful.cli.serve import serve  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        return _missing(error, "server")
    return serve(options)


def _missing(error: ModuleNotFoundError, extra: str) -> int:
    return _fail(f"{error.name} is missing; install it: pip install 'torchserve-stateful[{extra}]'")


def _talk(options: argparse.Namespace) -> int:
    try:
        if options.command == "chat":
            return _page(options) if options.web else _chat(options)
        talk = _prompt if options.command == "prompt" else _info
        with _connect(options) as server, waiting(server):
            return talk(server, options)
    except ServerUnreachable as error:
        reason = error.message.removesuffix(": OK").rpartition(": ")[2]  # gRPC adds both ends
        remedy = next(remedy for part, remedy in _REMEDIES.items() if part in error.message)
        return _fail(f"no server at {options.url} ({reason}); {remedy}")


def _connect(options: argparse.Namespace, policy: RetryPolicy | None = None) -> Server:
    return connect(
        options.url,
        model=options.model,
        timeout_s=options.timeout,
        token=options.token,
        headers=dict(options.header),
        ca_file=options.ca_file,
        max_body_bytes=options.max_body_bytes or MAX_BODY_BYTES,
        policy=policy or RetryPolicy(),
    )


def _chat(options: argparse.Namespace) -> int:
    with _connect(options, _IMPATIENT) as server, waiting(server):
        hello = server.hello()
    terminal = Terminal(sys.stdout, formats=not options.plain)
    for line in greeting(options.url, hello):
        terminal.aside(line)
    lines = lines_of(sys.stdin, NAMES, keeps_history=not options.no_history)
    with _connect(options) as server:
        session = server.attach(options.session) if options.session else None
        chat = ChatLoop(server, hello.limits, terminal, lines, _chat_options(options, session))
        return _FAILED if chat.run() and not sys.stdin.isatty() else _OK


def _chat_options(options: argparse.Namespace, session: Session | None) -> ChatOptions:
    files = tuple(options.image), tuple(options.audio)
    return ChatOptions(session, options.system, *files, _prompt_options(options))


def _page(options: argparse.Namespace) -> int:
    if Ports(options.web_port).taken():
        return _fail(f"127.0.0.1:{options.web_port} is in use; name another --web-port")
    try:
        from ts_stateful.cli.web.run import serve_page  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        return _missing(error, "web")
    patient = RetryPolicy(max_delay_s=2.0, waits_for_server=True)
    with _connect(options, patient) as server, _connect(options, _IMPATIENT) as probe:
        session = probe.attach(options.session) if options.session else None
        given = _chat_options(options, session)
        keys = key_prefix(options.url, options.model, options.header, options.token)
        return serve_page(server, probe, given, options.url, options.web_port, keys)


def _prompt(server: Server, options: argparse.Namespace) -> int:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    asked, media = _prompt_options(options), {"images": options.image, "audio": options.audio}
    if options.session:
        _print_reply(server.attach(options.session).prompt(text, **media, **asked), options)
    else:
        with server.open(system=options.system, **media) as session:
            _print_reply(session.prompt(text, **asked), options)
    return _OK


def _print_reply(reply: Reply, options: argparse.Namespace) -> None:
    terminal = Terminal(sys.stdout)
    if options.json:
        reply.result()
        terminal.line(json.dumps(_document(reply), ensure_ascii=False))
        return
    for piece in reply:
        terminal.text(piece)
    terminal.line()


def _document(reply: Reply) -> dict[str, Any]:
    return {
        "session_id": reply.session_id,
        "turn": reply.turn,
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "usage": msgspec.to_builtins(reply.usage),
        "timing": msgspec.to_builtins(reply.timing),
    }


def _prompt_options(options: argparse.Namespace) -> PromptOptions:
    given = {name: getattr(options, name, None) for name in PromptOptions.__optional_keys__}
    return cast(
        "PromptOptions", {name: value for name, value in given.items() if value is not None}
    )


def _info(server: Server, options: argparse.Namespace) -> int:
    session = options.session
    document = msgspec.to_builtins(server.attach(session).info() if session else server.hello())
    terminal = Terminal(sys.stdout)
    if options.json:
        terminal.line(json.dumps(document))
    else:
        _print_fields(terminal, document)
    return _OK


def _print_fields(terminal: Terminal, document: dict[str, Any], indent: str = "") -> None:
    for name, value in document.items():
        if isinstance(value, dict):
            terminal.line(f"{indent}{name}:")
            _print_fields(terminal, value, indent + "  ")
        else:
            terminal.line(f"{indent}{name}: {value}")


def _fail(message: str, status: int = _FAILED) -> int:
    Terminal(sys.stderr).line("error: " + " ".join(message.split()))
    return status
