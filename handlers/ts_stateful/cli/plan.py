"""`ts-stateful plan`: from options to what is asked, from a plan to standard output.

Owns what the options mean together, and beside the configuration that one may start from.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ts_stateful.cli.models import find_model
from ts_stateful.cli.terminal import Terminal
from ts_stateful.config.check import Finding, read_document
from ts_stateful.config.schema import Config, ConfigError, load_config
from ts_stateful.config.sizes import StatesSize
from ts_stateful.plan import Asked, PlanRefused, make_plan
from ts_stateful.protocol.profile import Profile

__all__ = ["plan"]


def plan(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Prints a configuration, and on standard error what the hardware does not hold.

    Raises:
        PlanRefused, ModelUnknown, ConfigError: nothing was printed; the message says why and what to do.
    """
    kept, base = _base(options.config)
    made = make_plan(_asked(options, base, kept), kept, shlex.join(["ts-stateful", *arguments]))
    for warning in made.warnings:
        Terminal(sys.stderr).line(f"warning: {warning}")
    Terminal(sys.stdout).text(made.text)


def _base(path: Path | None) -> tuple[dict[str, Any], Config | None]:
    if path is None:
        return {}, None
    document = read_document(path)
    if isinstance(document, Finding):
        raise ConfigError(f"{document.key} {document.message}")
    return dict(document or {}), load_config(document)


def _asked(options: argparse.Namespace, base: Config | None, kept: Mapping[str, Any]) -> Asked:
    states = _states(options, base)
    model = find_model(options.model) if options.model is not None else None
    if states is not None and model is not None:
        raise PlanRefused(
            "--model is for language models, and states are given; leave one of them out"
        )
    settings = Config() if base is None else base
    handler, frontend = settings.handler, settings.frontend
    profile = Profile(options.profile) if options.profile else None
    return Asked(
        sessions=options.sessions,
        profile=profile or frontend.profile,
        gpus=options.gpus,
        active=options.active,
        model=model,
        model_name=None if model is None else _name_in_archive(options.model),
        states=states,
        max_rows=_max_rows(kept, base),
        fixed_rows=base is not None and base.state is not None and base.state.fixed_rows,
        dtype=options.dtype or handler.dtype,
        context=options.context or handler.context_length,
        session_tokens=options.tokens,
        session_image_tokens=options.image_tokens,
        gpu_memory=options.gpu_memory,
        memory=options.memory,
        weight_bytes=options.weights,
        idle_min=options.idle or frontend.idle_s / 60,
        opened_per_min=options.opens,
        waiting=Asked.waiting if base is None else frontend.max_sequence_job_queue_size,
    )


def _states(options: argparse.Namespace, base: Config | None) -> StatesSize | None:
    declared = base.state if base is not None else None
    if options.state_bytes is not None:
        return StatesSize.given(options.state_bytes)
    return StatesSize.of(declared.states) if declared is not None else None


def _max_rows(kept: Mapping[str, Any], base: Config | None) -> int | None:
    """Where the file itself says so: a default is the plan's to choose."""
    if base is None or base.state is None or "maxRows" not in kept["handler"]:
        return None
    return base.state.max_rows


def _name_in_archive(model: str) -> str:
    """What `handler.model` says: the folder that archive.sh packs, or the hub id."""
    return "model" if Path(model).exists() else model
