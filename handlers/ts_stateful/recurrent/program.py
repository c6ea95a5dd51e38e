"""A model with recurrent state, as it is called.

Owns how the three forms are loaded (TorchScript, exported program, Python class) and what a call must give back. Knows
nothing of sequences.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from ts_stateful.config.schema import ConfigError, StateConfig
from ts_stateful.protocol.declarations import Datatype
from ts_stateful.recurrent.fused_layers import fuse_layers

__all__ = ["Program", "load_program", "torch_dtype"]

_DTYPES = {
    Datatype.BOOL: torch.bool,
    Datatype.UINT8: torch.uint8,
    Datatype.INT8: torch.int8,
    Datatype.INT16: torch.int16,
    Datatype.INT32: torch.int32,
    Datatype.INT64: torch.int64,
    Datatype.FP16: torch.float16,
    Datatype.FP32: torch.float32,
    Datatype.FP64: torch.float64,
    Datatype.BF16: torch.bfloat16,
}


def torch_dtype(datatype: Datatype) -> torch.dtype:
    """Return torch's name of an element type."""
    return _DTYPES[datatype]


class Program:
    """Calls `function(*inputs, *states)`, which returns the outputs and the new states in one flat tuple.

    Calls of up to `plain_rows` rows go without oneDNN.
    """

    def __init__(
        self, function: Callable[..., Any], settings: StateConfig, *, name: str, num_parameters: int
    ) -> None:
        self.name = name
        self.num_parameters = num_parameters
        self.plain_rows = 0
        self._function = function
        self._rows_dim = settings.inputs[0].rows_dim
        self._num_outputs = len(settings.outputs)
        self._names = [declared.name for declared in (*settings.outputs, *settings.states)]

    def __call__(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return outputs and new states.

        Raises:
            TypeError: the model returns something else.
            RuntimeError: it would end the process, as `sys.exit` does.
        """
        plain = self.plain_rows > 0 and inputs[0].shape[self._rows_dim] <= self.plain_rows
        try:
            with torch.inference_mode(), _without_onednn() if plain else contextlib.nullcontext():
                made = self._function(*inputs, *states)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # the sequences of others are in this process
            ended = RuntimeError(f"{self.name} raised {type(error).__name__}")
            raise ended.with_traceback(error.__traceback__) from None
        tensors = self._tensors((made,) if isinstance(made, Tensor) else made)
        return tensors[: self._num_outputs], tensors[self._num_outputs :]

    def _tensors(self, made: Any) -> list[Tensor]:
        """Return the results without gradients, which views of parameters have in inference mode too."""
        if not isinstance(made, tuple | list):
            raise self._refusal(f"a {type(made).__name__}")
        for number, result in enumerate(made, 1):
            if not isinstance(result, Tensor):
                raise self._refusal(f"a {type(result).__name__} as result {number}")
            if result.layout is not torch.strided:
                raise self._refusal(f"a {result.layout} tensor as result {number}")
        if len(made) != len(self._names):
            raise self._refusal(f"{len(made)} tensors")
        return [tensor.detach() for tensor in made]

    def _refusal(self, what: str) -> TypeError:
        return TypeError(
            f"{self.name} returns {what}; return one flat tuple of dense tensors, outputs and then states:"
            f" ({', '.join(self._names)})"
        )


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """Do without oneDNN, in the whole process."""
    onednn: Any = torch.backends.mkldnn
    was_enabled = onednn.enabled
    onednn.enabled = False
    try:
        yield
    finally:
        onednn.enabled = was_enabled


def load_program(
    settings: StateConfig, model_dir: Path, device: torch.device, name: str
) -> Program:
    """Load the program that a configuration names, onto its device.

    Raises:
        ConfigError: it is not there, or cannot be loaded.
    """
    path, _, class_name = settings.model.partition(":")
    file = model_dir / path
    if not file.is_file():
        raise ConfigError(f"handler.model: no file {path} in the archive")
    if not class_name and (settings.arguments or settings.weights):
        raise ConfigError("handler.arguments, handler.weights: only `file.py:Class` takes them")
    try:
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # which a program may mean by "cuda"
        module = _load(file, class_name, settings, model_dir, device)
    except ConfigError:
        raise
    except Exception as error:  # whatever a user's file raises
        raise ConfigError(f"handler.model {settings.model!r} cannot be loaded: {error}") from error
    if settings.fused_layers:
        fuse_layers(module, device)
    count = sum(weight.numel() for weight in module.parameters())
    return Program(module, settings, name=name, num_parameters=count)


def _load(
    file: Path, class_name: str, settings: StateConfig, model_dir: Path, device: torch.device
) -> nn.Module:
    if class_name:
        module: nn.Module = _class_of(file, class_name)(**settings.arguments)
        if settings.weights is not None:
            module.load_state_dict(_load_weights(model_dir / settings.weights))
        return module.to(device).eval()
    if file.suffix == ".pt2":
        # Tensors that it makes as well are on the device that is written in the file.
        exported = move_to_device_pass(torch.export.load(file), device)
        return exported.module()  # its mode was fixed by the export
    with warnings.catch_warnings():
        # Of TorchScript: what is there is served.
        warnings.filterwarnings("ignore", ".*torch.jit")
        scripted: nn.Module = torch.jit.load(file, map_location=device)
    return scripted.eval()


def _load_weights(file: Path) -> dict[str, Tensor]:
    """Read a file of safetensors. A pickle can run code, and is refused."""
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ConfigError(
            f"handler.weights: {file.name} is not a file of safetensors ({error}); write it with"
            " safetensors.torch.save_file(module.state_dict(), 'weights.safetensors')"
        ) from error


def _class_of(file: Path, name: str) -> type[nn.Module]:
    module_name = f"ts_stateful_model_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise TypeError(f"{file.name} defines no torch.nn.Module {name}")
    return found
