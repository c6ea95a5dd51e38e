"""The options and the help of `ts-stateful`."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ts_stateful.cli import admin, doctor, init, pack, plan, serve_options
from ts_stateful.cli.chat import COMMANDS
from ts_stateful.cli.numbers import filled, positive, whole
from ts_stateful.protocol.unknown import similar
from ts_stateful.version import __version__

__all__ = ["DEFAULT_URL", "build_parser"]

DEFAULT_URL = "grpc://127.0.0.1:7070"

_DESCRIPTION = (
    "Serve vision-language models in sessions, and talk to them. Plan, check and repair a server."
)
_EPILOG = """\
environment:
  TS_STATEFUL_URL    the server, if --url is not given
  TS_STATEFUL_TOKEN  the token, if --token is not given (other users of a machine can see options)
  TS_STATEFUL_ADMIN  the server of the commands for operators, if --admin is not given

examples:
  ts-stateful serve build/chat.mar
  ts-stateful chat --image examples/shapes/scene.png
  ts-stateful prompt "What color is the circle?" --image examples/shapes/scene.png
  ts-stateful prompt "Describe it" --image https://example.com/cat.jpg --url http://127.0.0.1:8080 --json
  ts-stateful info
  ts-stateful sessions --sort bytes
  ts-stateful top
  ts-stateful doctor --repair
  ts-stateful plan --sessions 500 --gpus 4 --gpu-memory 80GiB --model /models/llava-1.5-7b-hf > model-config.yaml
  ts-stateful check model-config.yaml

`ts-stateful COMMAND --help` explains each command.

exit status: 0 done, 1 failed (the reason is on standard error), 2 wrong usage, 130 interrupted.
"""
_CHAT_EPILOG = f"""\
Each line is a prompt. The first one opens the session, and the end of the chat closes it. After each reply the chat prints the
time to its first piece, its tokens, those that came from the session's cache, and how full the context is.

With the extra `chat` (prompt_toolkit and rich), a terminal has a history, completion by Tab, and replies as Markdown. Alt-Enter
or a backslash at the end of a line begins another line of the prompt. The history is in ~/.local/state/ts-stateful/history.

{textwrap.indent(COMMANDS, "  ")}

examples:
  ts-stateful chat --system "Answer in one word." --image scene.png
  ts-stateful chat --session 0123456789abcdef0123456789abcdef
"""
_PROMPT_EPILOG = """\
Without --session the command opens a session and closes it after the reply.

examples:
  ts-stateful prompt "What color is the circle?" --image examples/shapes/scene.png
  ts-stateful prompt - --max-new-tokens 50 < question.txt
  ts-stateful prompt "And the square?" --session 0123456789abcdef0123456789abcdef
"""
_INFO_EPILOG = """\
Prints the server's version, profile and limits, or the state, turns, tokens and bytes of a session.

examples:
  ts-stateful info
  ts-stateful info 0123456789abcdef0123456789abcdef --json
"""
_CHECK_EPILOG = """\
Needs no server. Errors are settings with which TorchServe would hang, leak or lose sessions. Warnings are settings that are
slow, risky or too small. Each finding has its cure. Without errors, the command prints the capacity: sessions, requests, and
the bytes of models with states or, with --model, of a language model. `ts-stateful plan` makes a configuration for a number of
sessions.

examples:
  ts-stateful check model-config.yaml
  ts-stateful check model-config.yaml --model /models/llava-1.5-7b-hf

exit status: 0 no errors (perhaps warnings), 1 errors, 2 wrong usage.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the word that was probably meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See `ArgumentParser`; nothing is left over, so the usage that is shown is that of the command."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            options = re.findall(r"--[a-z][a-z-]*", self.format_help())
            self.error(f"unrecognized arguments: {' '.join(rest)}{similar(rest[0], options)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        """See `ArgumentParser`."""
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += similar(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        super().error(message)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser. Defaults in the environment are read now."""
    parser = _Parser(
        prog="ts-stateful",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    connection, generation = _connection_options(), _generation_options()

    def add(
        name: str, text: str, epilog: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name,
            help=text,
            description=f"{text[:1].upper()}{text[1:]}.",
            epilog=epilog,
            parents=parents,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        return command

    chat = "talk in a session, line by line"
    _add_chat_options(add("chat", chat, _CHAT_EPILOG, connection, generation))
    prompt = add(
        "prompt", "send one prompt and print the reply", _PROMPT_EPILOG, connection, generation
    )
    prompt.add_argument("prompt", help="the prompt; - reads it from standard input")
    prompt.add_argument("--json", action="store_true", help="print one JSON document at the end")
    info = "show the server or one of its sessions"
    _add_info_options(add("info", info, _INFO_EPILOG, connection))
    _add_operating(add)
    _add_offline(add)
    return parser


def _add_info_options(info: argparse.ArgumentParser) -> None:
    text = "the id of a session; omit it for the server"
    info.add_argument("session", nargs="?", type=filled, help=text)
    info.add_argument("--json", action="store_true", help="print one JSON document")


def _add_chat_options(chat: argparse.ArgumentParser) -> None:
    add = chat.add_argument
    add("--plain", action="store_true", help="show replies as they are, not as Markdown")
    text = "do not keep what is typed for the next chat"
    add("--no-history", action="store_true", help=text)
    text = "serve a page for browsers of this machine instead"
    add("--web", action="store_true", help=text)
    text = "port of the page, on 127.0.0.1 (default: %(default)s)"
    add("--web-port", type=whole(1, 65_535), default=7860, metavar="PORT", help=text)


def _add_operating(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands for operators."""
    serve_options.add_options(add("serve", "serve models in the foreground", serve_options.EPILOG))
    doctor.add_options(
        add("doctor", "examine a model that does not answer, and repair it", doctor.EPILOG)
    )
    admin.add_commands(add)


def _add_offline(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """Add the commands that need no server."""
    pack.add_options(add("pack", "pack a model into an archive for TorchServe", pack.EPILOG))
    init.add_options(add("init", "ask five questions, and write a configuration", init.EPILOG))
    check = add("check", "check a configuration and print its capacity", _CHECK_EPILOG)
    check.add_argument("file", type=Path, help="a model-config.yaml")
    text = "the model: a folder, a config.json, a hub id, or module.py:Class"
    check.add_argument("--model", help=text)
    check.add_argument("--json", action="store_true", help="print one JSON document")
    plan.add_options(add("plan", "print a configuration for a number of sessions", plan.EPILOG))


def _connection_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument_group("connection").add_argument
    url = os.environ.get("TS_STATEFUL_URL") or DEFAULT_URL
    text = "grpc://, grpcs://, http:// or https://host:port, or sagemaker://endpoint?region=... (default: %(default)s)"
    add("--url", default=url, help=text)
    add("--model", default="chat", help="name of the model (default: %(default)s)")
    text = "longest time for a whole reply (default: %(default)g)"
    add("--timeout", type=positive, default=120.0, metavar="SECONDS", help=text)
    token = os.environ.get("TS_STATEFUL_TOKEN") or None
    text = "a signed token (`handler.auth`), or TorchServe's inference key (default: $TS_STATEFUL_TOKEN)"
    add("--token", default=token, help=text)
    text = (
        "a header of every request, for instance the one that names the principal; may be repeated"
    )
    add("--header", action="append", type=_header, default=[], metavar="NAME:VALUE", help=text)
    add("--ca-file", type=Path, metavar="FILE", help="trusted certificates, as PEM")
    text = "the server's max_request_size (default: TorchServe's, 6553500)"
    add("--max-body-bytes", type=whole(1), metavar="BYTES", help=text)
    return parser


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME:VALUE")
    return name.strip(), value.strip()


def _generation_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    title = "session and reply (unset options take the server's defaults)"
    add = parser.add_argument_group(title).add_argument
    text = "a file or a URL; may be repeated"
    add("--image", action="append", default=[], metavar="FILE", help=text)
    text = "the same, a clip for a model that hears"
    add("--audio", action="append", default=[], metavar="FILE", help=text)
    add("--system", metavar="TEXT", help="the system prompt")
    text = "continue this session, and leave it open"
    add("--session", type=filled, metavar="ID", help=text)
    add("--max-new-tokens", type=int, metavar="N", help="limit of the reply")
    add("--temperature", type=float, metavar="T", help="sampling temperature; 0 is greedy")
    add("--top-p", type=float, metavar="P", help="sample from this probability mass")
    add("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens")
    add("--seed", type=int, metavar="N", help="seed of sampling")
    text = "end the reply before this text; may be repeated"
    add("--stop", action="append", metavar="TEXT", help=text)
    text = "go on after the model's end"
    add("--ignore-eos", action="store_true", default=None, help=text)
    return parser
