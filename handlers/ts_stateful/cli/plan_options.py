"""The options of `ts-stateful plan`, and its help.

Owns what they are called and which numbers they take.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ts_stateful.cli.numbers import positive, whole
from ts_stateful.config.sizes import DTYPE_BYTES, parse_bytes

__all__ = ["EPILOG", "add_options"]

_MAX_BYTES = 1 << 50

EPILOG = """\
Prints a model-config.yaml that `ts-stateful check` passes, with the arithmetic beside every number. What the hardware does not
hold is said on standard error: sessions leave a full device and come back with their next turn, from host memory (--memory) or,
of language models, by computing their history again. What cannot work is refused, with what would. No model is loaded, and
neither a GPU nor torch is needed. docs/capacity.md explains the arithmetic.

what it counts:
  language models     layers x KV heads x (key + value width) x bytes of the dtype = bytes of a token, from config.json;
                      x tokens of a session, and the embeddings of its images, which stay while it is open
  models with state   the declared states, growing ones at their `max`
  a device            (memory - weights - 1 GiB for CUDA, or 2 GiB for TorchServe on a CPU) x 80 %; the rest is for activations
  a sequence profile  a place in the batch for every session that is open, or has been within --idle minutes

examples:
  500 sessions on four GPUs, a model in a folder; what does not fit moves to host memory as far as that goes:
    ts-stateful plan --sessions 500 --gpus 4 --gpu-memory 80GiB --memory 256GiB \\
        --model /models/llava-1.5-7b-hf > model-config.yaml
  what changes with shorter conversations, and with a turn in progress in one of five sessions:
    ts-stateful plan --sessions 500 --active 100 --gpus 4 --gpu-memory 80GiB --model config.json --tokens 1500
  a model with states, for clients of gRPC streams, of which 30 a minute begin:
    ts-stateful plan --sessions 200 --profile sequence --idle 1 --opens 30 --config examples/counter/model-config.yaml
  a CPU:
    ts-stateful plan --sessions 50 --memory 32GiB --model examples/shapes/model
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them."""
    asked = parser.add_argument_group("what is asked")
    asked.add_argument(
        "--sessions", type=whole(1), required=True, metavar="N", help="sessions open at once"
    )
    asked.add_argument(
        "--active",
        type=whole(1),
        metavar="N",
        help="turns in progress at once (default: a tenth of the sessions, at least 16)",
    )
    asked.add_argument(
        "--idle",
        type=positive,
        metavar="MIN",
        help="minutes after which an unused session ends (default: 10)",
    )
    asked.add_argument(
        "--opens",
        type=positive,
        default=0,
        metavar="N",
        help="sessions opened a minute; counts in the sequence profile, where ended ones keep their places until --idle",
    )
    asked.add_argument(
        "--profile",
        choices=["continuous", "sequence", "async"],
        help="TorchServe's way of batching (default: that of --config, else continuous)",
    )
    _add_model(parser)
    hardware = parser.add_argument_group("hardware; bytes may be written as 80GiB or 24GB")
    hardware.add_argument(
        "--gpus", type=whole(0), default=0, metavar="N", help="an engine each (default: 0, a CPU)"
    )
    hardware.add_argument("--gpu-memory", type=_bytes, metavar="BYTES", help="of one GPU")
    hardware.add_argument("--memory", type=_bytes, metavar="BYTES", help="of the machine")


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("what a session takes")
    model.add_argument(
        "--model",
        metavar="MODEL",
        help="a language model: its folder, its config.json, or a hub id, whose config.json is downloaded",
    )
    model.add_argument("--context", type=whole(1), metavar="TOKENS", help="of a session at most")
    model.add_argument(
        "--tokens",
        type=whole(1),
        metavar="TOKENS",
        help="of a usual session, images included (default: --context, else 4096 or the model's window)",
    )
    model.add_argument(
        "--image-tokens",
        type=whole(0),
        metavar="N",
        help="of these, for its images (default: one image, where the model tells)",
    )
    model.add_argument("--dtype", choices=["auto", *DTYPE_BYTES], help="of weights and KV states")
    model.add_argument(
        "--weights",
        type=_bytes,
        metavar="BYTES",
        help="of the model (default: by its files or dimensions)",
    )
    model.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a model-config.yaml to start from: its other keys are taken over, and the states that it declares are counted",
    )
    model.add_argument(
        "--state-bytes", type=_bytes, metavar="BYTES", help="of one sequence of a model with states"
    )


def _bytes(text: str) -> int:
    try:
        value = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= value <= _MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 byte to a pebibyte")
    return value
