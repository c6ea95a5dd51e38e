"""The command `ts-stateful plan`: its options, its help, and its output."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ts_stateful.cli.numbers import num_bytes, positive, whole
from ts_stateful.cli.terminal import Terminal
from ts_stateful.config.adapters import read_adapter
from ts_stateful.config.check import read_settings
from ts_stateful.config.given_model import expand_home, find_model
from ts_stateful.config.schema import Config, load_config
from ts_stateful.config.sizes import DTYPE_BYTES, StatesSize
from ts_stateful.plan import Asked, PlanRefused, make_plan
from ts_stateful.protocol.profile import TORCHSERVE_PROFILES, Profile

__all__ = ["EPILOG", "MAX_SESSIONS", "add_options", "plan"]

MAX_SESSIONS = 1_000_000
_FIELDS = (  # of `Asked`, under their own names
    *("sessions", "active", "gpus", "gpu_memory", "memory", "weight_bytes", "opened_per_min"),
    *("session_tokens", "session_image_tokens"),
)

_ABSENT = "the adapter {} has no folder here, so its weights do not count"

EPILOG = """\
Prints a model-config.yaml that `ts-stateful check` accepts, after a table of its arithmetic. Warnings on standard error name
the sessions that do not fit. Requests that cannot work are refused, with options that work. No model is loaded, and neither
a GPU nor torch is needed. docs/capacity.md explains the arithmetic.

examples:
  500 sessions on four GPUs; those that do not fit move to host memory:
    ts-stateful plan --sessions 500 --gpus 4 --gpu-memory 80GiB --memory 256GiB \\
        --model /models/llava-1.5-7b-hf > model-config.yaml
  a model with states, with 30 new gRPC streams a minute:
    ts-stateful plan --sessions 200 --profile sequence --idle 1 --opens 30 --config examples/counter/model-config.yaml
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    text = "print one JSON document, with the configuration and the warnings"
    parser.add_argument("--json", action="store_true", help=text)
    add = parser.add_argument_group("sessions").add_argument
    most = whole(1, MAX_SESSIONS)
    add("--sessions", type=most, required=True, metavar="N", help="sessions open at once")
    text = "turns in progress at once (default: a tenth of the sessions, at least 16)"
    add("--active", type=whole(1), metavar="N", help=text)
    text = "minutes after which an unused session ends (default: that of --config, else 10)"
    add("--idle", type=positive, metavar="MIN", help=text)
    text = "new sessions a minute; matters in the sequence profile"
    add("--opens", dest="opened_per_min", type=positive, default=0, metavar="N", help=text)
    profiles = [profile.value for profile in TORCHSERVE_PROFILES]
    text = "TorchServe's kind of batching (default: that of --config, else continuous)"
    add("--profile", choices=profiles, help=text)

    add = parser.add_argument_group("size of a session").add_argument
    add("--model", help="a language model: its folder, its config.json, or a hub id")
    add("--context", type=whole(1), metavar="TOKENS", help="longest context of a session")
    text = "a usual session with its images (default: --context, else 4096 or the model's window)"
    add("--tokens", dest="session_tokens", type=whole(1), metavar="TOKENS", help=text)
    text = "image tokens among them (default: those of one image)"
    add("--image-tokens", dest="session_image_tokens", type=whole(0), metavar="N", help=text)
    add("--dtype", choices=["auto", *DTYPE_BYTES], help="dtype of weights and KV states")
    text = "size of the weights (default: by their files, else estimated)"
    add("--weights", dest="weight_bytes", type=num_bytes, metavar="BYTES", help=text)
    text = "a model-config.yaml to start from; its other keys stay; its states and adapters are counted"
    add("--config", type=Path, metavar="FILE", help=text)
    text = "one session of a model with states, without --config"
    add("--state-bytes", type=num_bytes, metavar="BYTES", help=text)

    add = parser.add_argument_group("hardware, with bytes as 80GiB or 24GB").add_argument
    text = "GPUs, with one engine each, or each group (default: 0, a CPU)"
    add("--gpus", type=whole(0), default=0, metavar="N", help=text)
    text = "GPUs of an engine, which split the model (default: that of --config, else 1)"
    add("--tensor-parallel", dest="split", type=whole(1), metavar="N", help=text)
    add("--gpu-memory", type=num_bytes, metavar="BYTES", help="memory of one GPU")
    add("--memory", type=num_bytes, metavar="BYTES", help="memory of the machine")


def plan(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Print a configuration, and warnings on standard error.

    Raises:
        PlanRefused, ModelUnknown, ConfigError: nothing was printed; the message has the reason and the remedy.
    """
    kept = read_settings(options.config)
    config = load_config(kept)
    adapters = _adapters(options, config)
    here = {name: folder for name, folder in adapters.items() if folder.is_dir()}
    weights = sum(read_adapter(name, folder).num_weights for name, folder in here.items())
    asked = _asked(options, kept, config, weights)
    made = make_plan(asked, kept, shlex.join(["ts-stateful", *arguments]))
    absent = [_ABSENT.format(name) for name in adapters if name not in here]
    warnings = [*made.warnings, *absent]
    if options.json:
        document = {"config": yaml.safe_load(made.text), "warnings": warnings}
        Terminal(sys.stdout).line(json.dumps(document, ensure_ascii=False))
        return
    for warning in warnings:
        Terminal(sys.stderr).line(f"warning: {warning}")
    Terminal(sys.stdout).text(made.text)


def _asked(
    options: argparse.Namespace, kept: Mapping[str, Any], base: Config, num_adapter_weights: int
) -> Asked:
    path = options.model
    frontend, handler, state = base.frontend, base.handler, base.state
    states = StatesSize.of(state.states) if state else None
    if options.state_bytes is not None:
        states = StatesSize.given(options.state_bytes)
    if states is not None and path is not None:
        raise PlanRefused("--model is for language models, but states are given; omit one of them")
    rows_stay = state is not None and (state.fixed_rows or "maxRows" in kept["handler"])
    # In an archive, `pack` calls the folder of a model `model`.
    name = "model" if path is not None and Path(path).exists() else path
    return Asked(
        **{name: getattr(options, name) for name in _FIELDS},
        profile=Profile(options.profile) if options.profile else frontend.profile,
        model=None if path is None else find_model(path),
        model_name=name,
        states=states,
        max_rows=state.max_rows if state and rows_stay else None,
        fixed_rows=state is not None and state.fixed_rows,
        dtype=options.dtype or handler.dtype,
        context=options.context or handler.context_length,
        idle_min=options.idle or frontend.idle_s / 60,
        num_adapter_weights=num_adapter_weights,
        split=options.split or handler.tensor_parallel,
    )


def _adapters(options: argparse.Namespace, config: Config) -> dict[str, Path]:
    """Return the folders of adapters; they may be in an archive alone."""
    beside = Path() if options.config is None else options.config.parent
    adapters = config.handler.adapters.items()
    return {name: beside / expand_home(path) for name, path in adapters}
