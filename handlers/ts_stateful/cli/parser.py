"""The options of the command, and its help.

Owns the argparse parser; knows nothing of what the subcommands do.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from ts_stateful.cli import doctor, plan_options, sagemaker_local
from ts_stateful.cli.numbers import positive, whole

__all__ = ["DEFAULT_URL", "build_parser"]

DEFAULT_URL = "grpc://127.0.0.1:7070"

_DESCRIPTION = "Sessions of vision-language models on TorchServe, from the command line."
_EPILOG = """\
environment:
  TS_STATEFUL_URL    the server, if --url is not given
  TS_STATEFUL_TOKEN  the token, if --token is not given (options are visible to other users of a machine)

examples:
  ts-stateful chat --image examples/shapes/scene.png
  ts-stateful prompt "What color is the circle?" --image examples/shapes/scene.png
  ts-stateful prompt "Describe it" --image https://example.com/cat.jpg --url http://127.0.0.1:8080 --json
  ts-stateful info
  ts-stateful doctor --repair
  ts-stateful plan --sessions 500 --gpus 4 --gpu-memory 80GiB --model /models/llava-1.5-7b-hf > model-config.yaml
  ts-stateful check model-config.yaml
  ts-stateful sagemaker-local --instances 2 --endpoint demo

exit status: 0 done, 1 failed (the reason is on standard error), 2 wrong usage, 130 interrupted.
"""
_CHAT_EPILOG = """\
Each line is a prompt. The session is opened with the first one and closed at the end. Behind each reply stand the time to its
first piece and the tokens that did not have to be computed again.

  /image FILE  sends an image (a file or a URL) with the next prompt, or opens the session with it
  /info        shows the figures of the session
  /fork        goes on in a copy of the session; the one that was copied stays as it is
  /rewind N    forgets what came behind turn N; 0 goes back to the beginning
  /sessions    lists the sessions of this chat; /sessions N goes on in number N
  /help        shows these commands
  /quit        ends the session, as Ctrl-D does
  Ctrl-C       cancels the reply in progress; what has come stays part of the session

example:
  ts-stateful chat --system "Answer in one word." --image scene.png
"""
_PROMPT_EPILOG = """\
examples:
  ts-stateful prompt "What color is the circle?" --image examples/shapes/scene.png
  ts-stateful prompt - --max-new-tokens 50 < question.txt
  ts-stateful prompt "And the square?" --session 0123456789abcdef0123456789abcdef
"""
_INFO_EPILOG = """\
examples:
  ts-stateful info
  ts-stateful info 0123456789abcdef0123456789abcdef --json
"""
_CHECK_EPILOG = """\
Finds what would make TorchServe hang, leak or lose sessions, without a server: errors, with status 1. Warnings are about what
would be slow, risky or too small. Then it says what the configuration holds: sessions, requests, and bytes where they are
known: of models with states, and with --model. `ts-stateful plan` makes a configuration for so many sessions.

examples:
  ts-stateful check model-config.yaml
  ts-stateful check model-config.yaml --model /models/llava-1.5-7b-hf
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser; the environment's defaults are read now."""
    parser = argparse.ArgumentParser(
        prog="ts-stateful",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    connection, generation = _connection_options(), _generation_options()

    def add(
        name: str, text: str, epilog: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=f"{text[:1].upper()}{text[1:]}.",
            epilog=epilog,
            parents=parents,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    add("chat", "talk in a session, line by line", _CHAT_EPILOG, connection, generation)
    prompt = add(
        "prompt", "send one prompt and print the reply", _PROMPT_EPILOG, connection, generation
    )
    prompt.add_argument("prompt", help="the prompt; - reads it from standard input")
    prompt.add_argument("--json", action="store_true", help="print one JSON document at the end")
    info = add("info", "show the server or one of its sessions", _INFO_EPILOG, connection)
    info.add_argument("session", nargs="?", help="the id of a session; without it, the server")
    info.add_argument("--json", action="store_true", help="print one JSON document")
    doctor.add_options(
        add("doctor", "find out whether a model serves, and revive it", doctor.EPILOG)
    )
    _add_offline(add)
    return parser


def _add_offline(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """The commands that speak to no server."""
    check = add("check", "check a configuration of TorchServe and the handler", _CHECK_EPILOG)
    check.add_argument("file", type=Path, help="a model-config.yaml")
    check.add_argument("--model", help="its language model: a folder, a config.json, or a hub id")
    plan = add("plan", "print a configuration for so many sessions", plan_options.EPILOG)
    plan_options.add_options(plan)
    text = "serve an endpoint like SageMaker's on this machine"
    sagemaker_local.add_options(add("sagemaker-local", text, sagemaker_local.EPILOG))


def _connection_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--url",
        default=os.environ.get("TS_STATEFUL_URL") or DEFAULT_URL,
        help="grpc://, grpcs://, http:// or https://host:port, or sagemaker://endpoint?region=..."
        " (default: %(default)s)",
    )
    group.add_argument("--model", default="chat", help="name of the model (default: %(default)s)")
    group.add_argument(
        "--timeout",
        type=positive,
        default=120.0,
        metavar="SECONDS",
        help="for a whole reply (default: %(default)g)",
    )
    group.add_argument(
        "--token",
        default=os.environ.get("TS_STATEFUL_TOKEN") or None,
        help="a key of TorchServe's token authorization",
    )
    group.add_argument("--ca-file", type=Path, metavar="FILE", help="certificates to trust")
    group.add_argument(
        "--max-body-bytes",
        type=whole(1),
        metavar="BYTES",
        help="the server's max_request_size (default: TorchServe's, 6553500)",
    )
    return parser


def _generation_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("session and reply; the server has defaults")
    group.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="a file or a URL; may be repeated",
    )
    group.add_argument("--system", metavar="TEXT", help="the system prompt")
    group.add_argument("--session", metavar="ID", help="go on with this session and leave it open")
    group.add_argument("--max-new-tokens", type=int, metavar="N")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    group.add_argument("--top-p", type=float, metavar="P")
    group.add_argument("--top-k", type=int, metavar="K")
    group.add_argument("--seed", type=int, metavar="N")
    group.add_argument("--stop", action="append", metavar="TEXT", help="may be repeated")
    return parser
