"""The command `ts-stateful init`: five questions, and a checked model-config.yaml."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ts_stateful.cli.numbers import num_bytes, whole
from ts_stateful.cli.plan import MAX_SESSIONS
from ts_stateful.cli.terminal import Terminal
from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.config.given_model import expand_home, find_model
from ts_stateful.config.schema import ConfigError
from ts_stateful.config.sizes import ModelUnknown, TransformerSize
from ts_stateful.config.store import URL_FORMS, StoreConfig
from ts_stateful.plan import START, Asked, make_plan

__all__ = ["EPILOG", "add_options", "init"]

T = TypeVar("T")
_MAX_GPUS = 64

EPILOG = """\
Asks for the model, the number of sessions, the hardware and the store. An empty line takes the answer in brackets. Then it
writes a configuration that `ts-stateful check` accepts, with the arithmetic of `ts-stateful plan`, and says how to serve it.
Answers can also come from a pipe, one a line.

examples:
  ts-stateful init
  ts-stateful init production.yaml
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    path, text = Path("model-config.yaml"), "the file to write (default: %(default)s)"
    parser.add_argument("file", type=Path, nargs="?", default=path, help=text)
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")


def init(options: argparse.Namespace) -> None:
    """Ask, and write the file.

    Raises:
        ConfigError: the file is there, or the answers have ended too early.
        PlanRefused: the sessions do not fit the hardware; nothing was written.
    """
    path: Path = options.file
    if path.exists() and not options.force:
        raise ConfigError(f"{path} is there already; give --force to replace it, or another name")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written; name another file")
    name, model = _ask("The model: a folder or a hub id (owner/name)", _model)
    sessions = _ask("Sessions that are open at the same time", whole(1, MAX_SESSIONS), "256")
    gpus = _ask("GPUs, 0 for a CPU", whole(0, _MAX_GPUS), "0")
    machine = ControlGroups().memory_bytes()
    default = "80GiB" if gpus else f"{max(1, machine // 2**30)}GiB"
    memory = _ask(f"Memory of {'one GPU' if gpus else 'the machine'}", num_bytes, default)
    store = _ask(f"Store of sessions: {URL_FORMS}", lambda url: StoreConfig(url=url), "none")
    asked = Asked(
        sessions=sessions,
        model=model,
        model_name=name,
        gpus=gpus,
        gpu_memory=memory if gpus else None,
        memory=machine if gpus else memory,
    )
    kept = {**START, "handler": {"store": {"url": store.url}}}
    made = make_plan(asked, kept, "ts-stateful init")
    path.write_text(made.text, encoding="utf-8")
    terminal = Terminal(sys.stdout)
    for warning in made.warnings:
        terminal.line(f"warning: {warning}")
    again = shlex.join(["ts-stateful", "check", str(path)])
    terminal.line(f"{path} is written. Check it again after changes: {again}")
    serve = shlex.join(["ts-stateful", "serve", name, "--config", str(path)])
    terminal.line(f"Serve it: {serve}")


def _ask(question: str, parse: Callable[[str], T], default: str = "") -> T:
    """Ask until there is a good answer."""
    terminal = Terminal(sys.stdout)
    while True:
        terminal.text(f"{question}{f' [{default}]' if default else ''}: ")
        line = sys.stdin.readline()
        if not line:
            terminal.line()
            raise ConfigError("the answers have ended before the questions; nothing was written")
        try:
            return parse(line.strip() or default)
        except (ValueError, argparse.ArgumentTypeError, ModelUnknown) as error:
            terminal.line(f"  {error}")


def _model(answer: str) -> tuple[str, TransformerSize]:
    folder = expand_home(answer)
    name = str(folder.resolve()) if folder.exists() else answer
    return name, find_model(name)
