"""What a model with recurrent state declares of itself: its inputs, outputs and states.

Owns the names, defaults and rules of these declarations (`handler.inputs`, `handler.outputs`, `handler.states`). Knows
nothing of tensors or models. Names of datatypes are those of the Open Inference Protocol (KServe v2).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

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
_Dim = Annotated[int, Meta(ge=-1)]  # not 0, which `check` refuses
_Count = Annotated[int, Meta(ge=1)]
_TAKEN = {"data", "body", "rpc"}  # of forms and gRPC inputs


class Datatype(enum.Enum):
    """Of the elements of a tensor."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"  # of states alone: no format that clients send has it


class Raw(enum.Enum):
    """How a body that is no JSON object becomes a tensor, and a tensor such a body."""

    TEXT = "text"  # a number, or numbers between commas or spaces
    PCM16 = "pcm16"  # 16-bit little-endian samples; where the datatype is a float, from -1 to 1
    BYTES = "bytes"  # the elements as they are, little-endian


class Ragged(enum.Enum):
    """How rows of different lengths run."""

    GROUP = "group"  # those of one length together, each group in a pass of its own
    PAD = "pad"  # all in one pass, the shorter ones padded at their end


class Control(enum.Enum):
    """What an input that no client sends tells the model about each row."""

    START = "start"  # whether this is the first step of its sequence
    END = "end"  # whether it is the last
    READY = "ready"  # false for a row that only fills a pass up (`handler.fixedRows`)


class WhenFull(enum.Enum):
    """What becomes of a growing state that would exceed its bound."""

    REFUSE = "refuse"  # the step is refused, and the state stays as it was
    DROP_OLDEST = "dropOldest"  # the beginning is let go


class Declared(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`shape` is that of one row, without the rows; -1 is a free dimension. `rows_dim` is where the model has its rows."""

    name: _Name
    datatype: Datatype = Datatype.FP32
    shape: tuple[_Dim, ...] = ()
    rows_dim: Annotated[int, Meta(ge=0, le=8)] = 0

    @property
    def free_dim(self) -> int | None:
        """Which dimension of a row is free, if one is."""
        return next((dim for dim, size in enumerate(self.shape) if size < 0), None)

    @property
    def num_elements(self) -> int:
        """Of a row, per unit of its free dimension if it has one."""
        count = 1
        for size in self.shape:
            count *= max(1, size)
        return count


class Input(Declared, frozen=True, kw_only=True):
    """`handler.inputs[i]`: what clients send, or what is told about it (`lengths_of`, `mask_of`, `control`)."""

    raw: Raw | None = None
    max: _Count | None = None  # of its free dimension, in one step
    ragged: Ragged = Ragged.GROUP
    padding: float = 0.0
    lengths_of: str | None = None  # of another input, or of a growing state: (rows,)
    mask_of: str | None = None  # of the same: (rows, longest), true where there is something
    control: Control | None = None  # (rows, *shape)

    @property
    def is_derived(self) -> bool:
        """Whether the server makes it."""
        return bool(self.lengths_of or self.mask_of or self.control)


class Output(Declared, frozen=True, kw_only=True):
    """`handler.outputs[i]`: what clients get. A free dimension is cut to `lengths_from`: an input, or an output of lengths."""

    raw: Raw | None = None
    lengths_from: str | None = None
    hidden: bool = False  # not sent: lengths of other outputs, for instance


class State(Declared, frozen=True, kw_only=True):
    """`handler.states[i]`: what is kept of a sequence between its steps.

    `initial` is a number for every element; `initial_file` names a safetensors file in the archive, of which the tensor of this
    name is taken. A growing state has one free dimension and at most `max` of it; `lengths_from` names the output that tells
    the new lengths, for states that are padded.
    """

    initial: float = 0.0
    initial_file: str | None = None
    max: _Count | None = None
    when_full: WhenFull = WhenFull.REFUSE
    ragged: Ragged = Ragged.GROUP
    lengths_from: str | None = None


def check(inputs: Sequence[Input], outputs: Sequence[Output], states: Sequence[State]) -> None:
    """Refuses declarations that contradict each other.

    Raises:
        ValueError: with the path of the declaration, as in `inputs[0].shape`.
    """
    if not inputs or not outputs or not states:
        raise ValueError("handler: inputs, outputs and states: declare at least one of each")
    for kind, tensors in (("inputs", inputs), ("outputs", outputs), ("states", states)):
        names = [tensor.name for tensor in tensors]
        for index, tensor in enumerate(tensors):
            path = f"handler.{kind}[{index}]"
            if tensor.name in names[:index]:
                raise ValueError(f"{path}.name: {tensor.name} is declared twice")
            if 0 in tensor.shape:
                raise ValueError(f"{path}.shape: no dimension may be 0")
            if sum(size < 0 for size in tensor.shape) > 1:
                raise ValueError(f"{path}.shape: only one dimension may be free (-1)")
            if tensor.rows_dim > len(tensor.shape):
                raise ValueError(f"{path}.rowsDim: {tensor.name} has no such dimension")
    _check_inputs(inputs, states)
    _check_outputs(inputs, outputs)
    _check_states(states, outputs)


def _check_inputs(inputs: Sequence[Input], states: Sequence[State]) -> None:
    sent = {tensor.name: tensor for tensor in inputs if not tensor.is_derived}
    free = {name for name, tensor in sent.items() if tensor.free_dim is not None}
    free |= {state.name for state in states if state.free_dim is not None}
    if not sent:
        raise ValueError("handler.inputs: clients have nothing to send")
    if sum(tensor.raw is not None for tensor in inputs) > 1:
        raise ValueError("handler.inputs: a body that is no JSON can be only one of them (raw)")
    for index, tensor in enumerate(inputs):
        path = f"handler.inputs[{index}]"
        if tensor.name in _TAKEN:
            raise ValueError(f"{path}.name: {tensor.name} names another part of a request")
        of = tensor.lengths_of or tensor.mask_of
        if bool(tensor.lengths_of) + bool(tensor.mask_of) + bool(tensor.control) > 1:
            raise ValueError(f"{path}: only one of lengthsOf, maskOf and control")
        if tensor.max is not None and tensor.name not in free:
            raise ValueError(f"{path}.max: clients send no {tensor.name} of different lengths")
        if tensor.is_derived and tensor.raw:
            raise ValueError(f"{path}.raw: no client sends {tensor.name}")
        if of is not None and of not in free:
            raise ValueError(f"{path}: {of} is no input or state with a free dimension")
        if tensor.datatype is Datatype.BF16:
            raise ValueError(f"{path}.datatype: no client can send BF16; take FP32")
        _check_raw(path, tensor)


def _check_raw(path: str, tensor: Input | Output) -> None:
    numbers = {Datatype.INT16, Datatype.FP16, Datatype.FP32, Datatype.FP64}
    if tensor.raw is Raw.PCM16 and tensor.datatype not in numbers:
        raise ValueError(f"{path}.raw: pcm16 becomes INT16 or a float, not {tensor.datatype.value}")


def _check_outputs(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
    lengths = {tensor.name for tensor in outputs if not tensor.shape}
    lengths |= {t.name for t in inputs if t.free_dim is not None and not t.is_derived}
    if all(tensor.hidden for tensor in outputs):
        raise ValueError("handler.outputs: all of them are hidden")
    if sum(tensor.raw is not None for tensor in outputs) > 1:
        raise ValueError("handler.outputs: an answer that is no JSON can be only one of them (raw)")
    padded = any(tensor.ragged is Ragged.PAD for tensor in inputs)
    for index, tensor in enumerate(outputs):
        path = f"handler.outputs[{index}]"
        if tensor.lengths_from is not None and tensor.lengths_from not in lengths:
            raise ValueError(f"{path}.lengthsFrom: {tensor.lengths_from} tells no lengths")
        if tensor.free_dim is not None and padded and tensor.lengths_from is None:
            raise ValueError(f"{path}.lengthsFrom: name what tells how long each row is")
        _check_raw(path, tensor)


def _check_states(states: Sequence[State], outputs: Sequence[Output]) -> None:
    lengths = {tensor.name for tensor in outputs if not tensor.shape}
    for index, state in enumerate(states):
        path = f"handler.states[{index}]"
        if state.free_dim is None:
            if state.max is not None or state.lengths_from is not None:
                raise ValueError(f"{path}: {state.name} has no free dimension that could grow")
            continue
        if state.max is None:
            raise ValueError(f"{path}.max: say how far {state.name} may grow")
        if state.ragged is Ragged.PAD and state.lengths_from is None:
            raise ValueError(f"{path}.lengthsFrom: name the output that tells the new lengths")
        if state.lengths_from is not None and state.lengths_from not in lengths:
            raise ValueError(f"{path}.lengthsFrom: {state.lengths_from} is no output of shape []")
