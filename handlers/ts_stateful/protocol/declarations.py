"""Declarations of models with recurrent state: `handler.inputs`, `handler.outputs` and `handler.states`.

Datatypes have the names of the Open Inference Protocol (KServe v2).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

__all__ = [
    "Control",
    "Datatype",
    "Declared",
    "Input",
    "Output",
    "Ragged",
    "Raw",
    "State",
    "WhenFull",
    "check",
]

_Name = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
_Dim = Annotated[int, Meta(ge=-1)]  # `check` refuses 0
_Count = Annotated[int, Meta(ge=1)]
_RESERVED = {"authorization", "body", "data", "rpc"}  # parts of forms and gRPC inputs


class Datatype(enum.Enum):
    """The type of a tensor's elements."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"  # for states only: no format of clients has it


# The smallest and the largest number. Those of floats also have NaN and infinities.
_RANGES: Final[dict[Datatype, tuple[float, float]]] = {
    Datatype.BOOL: (0, 1),
    Datatype.UINT8: (0, 255),
    Datatype.INT8: (-128, 127),
    Datatype.INT16: (-(2**15), 2**15 - 1),
    Datatype.INT32: (-(2**31), 2**31 - 1),
    Datatype.INT64: (-(2**63), 2**63 - 1),
    Datatype.FP16: (-65504.0, 65504.0),
    Datatype.FP32: (-3.4028234663852886e38, 3.4028234663852886e38),
    Datatype.FP64: (-math.inf, math.inf),
    Datatype.BF16: (-3.3895313892515355e38, 3.3895313892515355e38),
}


class Raw(enum.Enum):
    """Formats of a tensor as a body that is not JSON."""

    TEXT = "text"  # numbers, separated by commas or spaces
    PCM16 = "pcm16"  # 16-bit little-endian samples; of a float datatype, scaled to -1 to 1
    BYTES = "bytes"  # the elements, little-endian


class Ragged(enum.Enum):
    """Ways to run rows of different lengths."""

    GROUP = "group"  # one pass for each length
    PAD = "pad"  # one pass, with shorter rows padded at their end


class Control(enum.Enum):
    """Values of an input that the server makes for each row."""

    START = "start"  # true for the first step of a sequence
    END = "end"  # true for the last step of a sequence
    READY = "ready"  # false for a row that only fills up a pass (`handler.fixedRows`)


class WhenFull(enum.Enum):
    """Reactions to a growing state that would exceed its bound."""

    REFUSE = "refuse"  # refuse the step and keep the state
    DROP_OLDEST = "dropOldest"  # drop the oldest elements


class Declared(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A tensor. `shape` is that of one row, where -1 is a free dimension. `rows_dim` is the model's dimension of the rows."""

    name: _Name
    datatype: Datatype = Datatype.FP32
    shape: tuple[_Dim, ...] = ()
    rows_dim: Annotated[int, Meta(ge=0, le=8)] = 0

    @property
    def free_dim(self) -> int | None:
        """Return the index of a row's free dimension, or None."""
        return next((dim for dim, size in enumerate(self.shape) if size < 0), None)

    @property
    def num_elements(self) -> int:
        """Count the elements of a row, per unit of its free dimension if it has one."""
        return math.prod(max(1, size) for size in self.shape)

    @property
    def sent_datatype(self) -> str:
        """Return the type of the elements in answers: no format that clients read has BF16, so they are FP32 there."""
        return str((Datatype.FP32 if self.datatype is Datatype.BF16 else self.datatype).value)


class Input(Declared, frozen=True, kw_only=True):
    """`handler.inputs[i]`: sent by clients, or made by the server (`lengths_of`, `mask_of`, `control`)."""

    raw: Raw | None = None
    max: _Count | None = None  # size of its free dimension in one step
    ragged: Ragged = Ragged.GROUP
    padding: float = 0.0
    lengths_of: str | None = None  # of another input, or of a growing state: (rows,)
    mask_of: str | None = None  # of the same: (rows, longest), true where a row has elements
    control: Control | None = None  # (rows, *shape)

    @property
    def is_derived(self) -> bool:
        """Return True if the server makes this input."""
        return bool(self.lengths_of or self.mask_of or self.control)


class Output(Declared, frozen=True, kw_only=True):
    """`handler.outputs[i]`: sent to clients. A free dimension is cut to `lengths_from`: an input, or an output of lengths."""

    raw: Raw | None = None
    lengths_from: str | None = None
    hidden: bool = False  # not sent, for instance lengths of other outputs


class State(Declared, frozen=True, kw_only=True):
    """`handler.states[i]`: kept for a sequence between its steps.

    `initial` is the value of every element. `initial_file` names a safetensors file in the archive with a tensor of this
    name. A growing state has one free dimension, of size `max` at most. `lengths_from` names the output with the new lengths
    of padded states.
    """

    initial: float = 0.0
    initial_file: str | None = None
    max: _Count | None = None
    when_full: WhenFull = WhenFull.REFUSE
    ragged: Ragged = Ragged.GROUP
    lengths_from: str | None = None


def check(inputs: Sequence[Input], outputs: Sequence[Output], states: Sequence[State]) -> None:
    """Refuse declarations that contradict each other.

    Raises:
        ValueError: with the path of the declaration, like `inputs[0].shape`.
    """
    for contradiction in _contradictions(inputs, outputs, states):
        raise ValueError(contradiction)


def _contradictions(
    inputs: Sequence[Input], outputs: Sequence[Output], states: Sequence[State]
) -> Iterator[str]:
    if not inputs or not outputs or not states:
        yield "handler: inputs, outputs and states: declare at least one of each"
    for kind, tensors in (("inputs", inputs), ("outputs", outputs), ("states", states)):
        names = [tensor.name for tensor in tensors]
        for index, tensor in enumerate(tensors):
            path = f"handler.{kind}[{index}]"
            if tensor.name in names[:index]:
                yield f"{path}.name: {tensor.name} is declared twice; rename one"
            if 0 in tensor.shape:
                yield f"{path}.shape: a dimension is 0; use -1 for a free dimension"
            if sum(size < 0 for size in tensor.shape) > 1:
                yield f"{path}.shape: several dimensions are free (-1); only one may be"
            if tensor.rows_dim > len(tensor.shape):
                yield f"{path}.rowsDim: {tensor.name} has no dimension {tensor.rows_dim}"
    yield from _of_inputs(inputs, states)
    yield from _of_outputs(inputs, outputs)
    yield from _of_states(states, outputs)


def _of_inputs(inputs: Sequence[Input], states: Sequence[State]) -> Iterator[str]:
    sent = {tensor.name: tensor for tensor in inputs if not tensor.is_derived}
    free = {name for name, tensor in sent.items() if tensor.free_dim is not None}
    free |= {state.name for state in states if state.free_dim is not None}
    if not sent:
        yield "handler.inputs: the server makes all; declare one for clients"
    if sum(tensor.raw is not None for tensor in inputs) > 1:
        yield "handler.inputs: several have `raw`, but a body that is not JSON is one input; keep one"
    for index, tensor in enumerate(inputs):
        path = f"handler.inputs[{index}]"
        if tensor.name in _RESERVED:
            yield f"{path}.name: {tensor.name} is reserved for another part of a request; rename it"
        of = tensor.lengths_of or tensor.mask_of
        if bool(tensor.lengths_of) + bool(tensor.mask_of) + bool(tensor.control) > 1:
            yield f"{path}: lengthsOf, maskOf and control exclude each other; keep one"
        if tensor.max is not None and tensor.name not in free:
            yield f"{path}.max: clients send no {tensor.name} of different lengths; leave it out"
        if tensor.is_derived and tensor.raw:
            yield f"{path}.raw: the server makes {tensor.name}; leave it out"
        if of is not None and of not in free:
            yield f"{path}: {of} is not an input or state with a free dimension"
        if tensor.datatype is Datatype.BF16:
            yield f"{path}.datatype: clients cannot send BF16; use FP32"
        yield from _of_raw(path, tensor)
        yield from _of_value(f"{path}.padding", tensor.padding, tensor.datatype)


def _of_value(path: str, value: float, datatype: Datatype) -> Iterator[str]:
    low, high = _RANGES[datatype]
    is_whole = isinstance(low, int)
    fits = low <= value <= high and not (is_whole and value % 1)
    if not fits and (is_whole or math.isfinite(value)):
        kind = "a whole number" if is_whole else "a number"
        yield f"{path}: {value:g} is no {datatype.value}; use {kind} from {low} to {high}"


def _of_raw(path: str, tensor: Input | Output) -> Iterator[str]:
    numbers = {Datatype.INT16, Datatype.FP16, Datatype.FP32, Datatype.FP64}
    if tensor.raw is Raw.PCM16 and tensor.datatype not in numbers:
        yield f"{path}.raw: pcm16 is for INT16 and floats, not {tensor.datatype.value}"


def _of_outputs(inputs: Sequence[Input], outputs: Sequence[Output]) -> Iterator[str]:
    lengths = {tensor.name for tensor in outputs if not tensor.shape}
    lengths |= {t.name for t in inputs if t.free_dim is not None and not t.is_derived}
    if all(tensor.hidden for tensor in outputs):
        yield "handler.outputs: all are hidden; show one"
    if sum(tensor.raw is not None for tensor in outputs) > 1:
        yield "handler.outputs: several have `raw`, but an answer that is not JSON is one output; keep one"
    padded = any(tensor.ragged is Ragged.PAD for tensor in inputs)
    for index, tensor in enumerate(outputs):
        path = f"handler.outputs[{index}]"
        if tensor.lengths_from is not None and tensor.lengths_from not in lengths:
            yield f"{path}.lengthsFrom: {tensor.lengths_from} has no lengths; name an output of shape [] or an input"
        if tensor.lengths_from is not None and tensor.free_dim is None:
            yield f"{path}.lengthsFrom: {tensor.name} has no free dimension; leave it out"
        if tensor.free_dim is not None and padded and tensor.lengths_from is None:
            yield f"{path}.lengthsFrom: missing; name the input or output with the length of each row"
        yield from _of_raw(path, tensor)


def _of_states(states: Sequence[State], outputs: Sequence[Output]) -> Iterator[str]:
    lengths = {tensor.name for tensor in outputs if not tensor.shape}
    for index, state in enumerate(states):
        path = f"handler.states[{index}]"
        yield from _of_value(f"{path}.initial", state.initial, state.datatype)
        if state.initial_file is not None and state.initial != 0:
            yield f"{path}: initial and initialFile exclude each other; keep one"
        if state.free_dim is None:
            if state.max is not None or state.lengths_from is not None:
                yield f"{path}: {state.name} has no free dimension; leave out max and lengthsFrom"
            continue
        if state.max is None:
            yield f"{path}.max: missing; set the largest size of {state.name}"
        if state.ragged is Ragged.PAD and state.lengths_from is None:
            yield f"{path}.lengthsFrom: missing; name the output with the new lengths"
        if state.lengths_from is not None and state.lengths_from not in lengths:
            yield f"{path}.lengthsFrom: {state.lengths_from} is not an output of shape []"
