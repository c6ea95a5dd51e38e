"""The metadata of the Open Inference Protocol, of a server and of its models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from ts_stateful.asgi.model import ModelFront
from ts_stateful.protocol.answers import TensorMetadata
from ts_stateful.protocol.declarations import Declared
from ts_stateful.version import __version__

__all__ = ["SERVER", "ModelMetadata", "model_metadata"]

_PLATFORM = "pytorch"


class ModelMetadata(Struct, frozen=True):
    """A model. One without recurrent state has no tensors."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


SERVER: Final[dict[str, Any]] = {
    "name": "torchserve-stateful",
    "version": __version__,
    "extensions": ("binary_tensor_data", "sequence"),  # of Triton's protocol
}


def model_metadata(model: ModelFront) -> ModelMetadata:
    """Describe a model."""
    state = model.config.state
    inputs = [] if state is None else [one for one in state.inputs if not one.is_derived]
    outputs = [] if state is None else [one for one in state.outputs if not one.hidden]
    return ModelMetadata(
        model.name, (model.version,), _PLATFORM, _tensors(inputs), _tensors(outputs)
    )


def _tensors(declared: Iterable[Declared]) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(one.name, one.sent_datatype, one.shape) for one in declared)
