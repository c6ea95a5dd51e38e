"""Rows of several sequences as one call of the model: stacking, padding, lengths, masks and controls, and cutting results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from msgspec import Struct
from torch import Tensor

from ts_stateful.config.schema import StateConfig
from ts_stateful.protocol.declarations import Control, Declared, Input, Output, Ragged, State
from ts_stateful.recurrent.output_rows import OutputRows
from ts_stateful.recurrent.program import torch_dtype
from ts_stateful.recurrent.slots import free_dim

__all__ = ["Grouping", "InputRow", "Results", "Shaper"]


class InputRow(Struct, eq=False, gc=False):  # of all objects the quickest to make
    """One step of one sequence: the elements and shapes of the inputs that its client sent, and the row's own facts.

    `lengths` are those of its states, None for one that does not grow.
    """

    inputs: Sequence[bytes]
    shapes: Sequence[tuple[int, ...]]
    lengths: Sequence[int | None] = ()
    start: bool = False
    end: bool = False


class Grouping:
    """The rows that can run in one pass: those with equal keys."""

    def __init__(self, settings: StateConfig) -> None:
        self._inputs = _grouped([tensor for tensor in settings.inputs if not tensor.is_derived])
        self._states = _grouped(settings.states)

    @property
    def is_trivial(self) -> bool:
        """True if all rows have the same key."""
        return not (self._inputs or self._states)

    def key(self, row: InputRow) -> tuple[object, ...]:
        """Return the key of a row."""
        grouped = [row.shapes[number] for number in self._inputs]
        return (*grouped, *[row.lengths[number] for number in self._states])


class Results(NamedTuple):
    """The results of a pass.

    `states[i]` is in the model's layout on its device; `state_lengths[i]` are the lengths of its rows, None where nothing is
    padded.
    """

    outputs: list[OutputRows]
    states: list[Tensor]
    state_lengths: list[list[int] | None]


class Shaper:
    """Makes the tensors of a pass, for one model on one device."""

    def __init__(self, settings: StateConfig, device: torch.device) -> None:
        self._settings = settings
        self._device = device

    def inputs(self, rows: Sequence[InputRow], num_rows: int) -> list[Tensor]:
        """Return the model's inputs for `num_rows` rows; those after `rows` are fillers of zeros."""
        inputs = zip(*[row.inputs for row in rows], strict=True)
        shapes = zip(*[row.shapes for row in rows], strict=True)
        sent = zip(inputs, shapes, strict=True)
        return [
            self._derived(tensor, rows, num_rows)
            if tensor.is_derived
            else self._stacked(tensor, *next(sent), num_rows)
            for tensor in self._settings.inputs
        ]

    def longest(self, rows: Sequence[InputRow]) -> list[int | None]:
        """Return the length that is needed of each state, that of the longest row; None if it does not grow."""
        lengths = [_lengths_of_states(rows, number) for number in range(len(self._settings.states))]
        return [None if of_rows is None else max(of_rows) for of_rows in lengths]

    def blanked(self, states: Sequence[Tensor], rows: Sequence[InputRow]) -> list[Tensor]:
        """Return the gathered states with zeros after the length of every row, where former sequences left values."""
        blanked = list(states)
        for number, state in enumerate(self._settings.states):
            lengths = _lengths_of_states(rows, number)
            if lengths is None or len(set(lengths)) == 1:
                continue
            tensor = blanked[number]
            mask = self._mask(lengths, tensor.shape[free_dim(state)], tensor.shape[state.rows_dim])
            blanked[number] = tensor.masked_fill(_spread(~mask, state, tensor), 0)
        return blanked

    def results(
        self, rows: Sequence[InputRow], outputs: Sequence[Tensor], states: Sequence[Tensor]
    ) -> Results:
        """Check and cut what the model returned.

        Raises:
            TypeError: a tensor is not what is declared.
        """
        num_rows, settings = len(rows), self._settings
        all_declared: list[Declared] = [*settings.outputs, *settings.states]
        for declared, tensor in zip(all_declared, (*outputs, *states), strict=True):
            _check(declared, tensor, settings.max_rows if settings.fixed_rows else num_rows)
        on_host = [
            _without_fillers(tensor, declared, num_rows).movedim(declared.rows_dim, 0).to("cpu")
            for declared, tensor in zip(settings.outputs, outputs, strict=True)
        ]
        by_name = {
            declared.name: tensor
            for declared, tensor in zip(settings.outputs, on_host, strict=True)
            if not declared.shape  # another one of this name is cut by its input
        }

        def lengths(declared: Output | State, tensor: Tensor) -> list[int] | None:
            name = declared.lengths_from
            if name is None:
                return None
            given = [int(length) for length in by_name[name].tolist()] if name in by_name else None
            return _checked(declared, tensor, given or _lengths_of_inputs(settings, rows, name))

        return Results(
            [
                OutputRows(declared, on_host[number], lengths(declared, outputs[number]))
                for number, declared in enumerate(settings.outputs)
            ],
            [
                _without_fillers(tensor, declared, num_rows)
                for declared, tensor in zip(settings.states, states, strict=True)
            ],
            [lengths(*pair) for pair in zip(settings.states, states, strict=True)],
        )

    def _stacked(
        self,
        tensor: Input,
        rows: Sequence[bytes],
        shapes: Sequence[tuple[int, ...]],
        num_rows: int,
    ) -> Tensor:
        dtype = torch_dtype(tensor.datatype)
        if shapes.count(shapes[0]) == len(shapes):
            flat = torch.frombuffer(bytearray().join(rows), dtype=dtype)
            made = flat.view(len(rows), *shapes[0])
            if num_rows > len(rows):
                made = torch.cat([made, made.new_zeros(num_rows - len(rows), *shapes[0])])
        else:
            longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
            made = torch.full((num_rows, *longest), tensor.padding, dtype=dtype)
            for number, (row, shape) in enumerate(zip(rows, shapes, strict=True)):
                place = made[number]
                for dim, size in enumerate(shape):
                    place = place.narrow(dim, 0, size)
                place.copy_(torch.frombuffer(bytearray(row), dtype=dtype).view(shape))
        if tensor.rows_dim:
            made = made.movedim(0, tensor.rows_dim)
        return made.to(self._device)

    def _derived(self, tensor: Input, rows: Sequence[InputRow], num_rows: int) -> Tensor:
        dtype = torch_dtype(tensor.datatype)
        if tensor.control is not None:
            flags = [_FLAGS[tensor.control](row) for row in rows]
            flags += [False] * (num_rows - len(rows))
            one = torch.tensor(flags, dtype=dtype).view(num_rows, *(1 for _ in tensor.shape))
            made = one.repeat(1, *tensor.shape)  # the model may write into each element
            return made.movedim(0, tensor.rows_dim).to(self._device)
        name = tensor.lengths_of or tensor.mask_of
        assert name is not None
        lengths = _lengths_of_inputs(self._settings, rows, name)
        if lengths is None:
            number = [state.name for state in self._settings.states].index(name)
            lengths = _lengths_of_states(rows, number)
        assert lengths is not None
        if tensor.mask_of is not None:
            return self._mask(lengths, max(lengths), num_rows).to(dtype)
        lengths = lengths + [0] * (num_rows - len(rows))
        return torch.tensor(lengths, dtype=dtype, device=self._device)

    def _mask(self, lengths: Sequence[int], longest: int, num_rows: int) -> Tensor:
        """Return a mask `(num_rows, longest)`: true within the length of a row."""
        filled = torch.tensor([*lengths, *[0] * (num_rows - len(lengths))], device=self._device)
        return torch.arange(longest, device=self._device) < filled.unsqueeze(1)


_FLAGS: dict[Control, Callable[[InputRow], bool]] = {
    Control.START: lambda row: row.start,
    Control.END: lambda row: row.end,
    Control.READY: lambda row: True,
}


def _grouped(tensors: Sequence[Input | State]) -> list[int]:
    """Return the numbers of the tensors that must be equally long in all rows of a pass."""
    return [
        number
        for number, tensor in enumerate(tensors)
        if tensor.free_dim is not None and tensor.ragged is Ragged.GROUP
    ]


def _without_fillers(tensor: Tensor, declared: Declared, num_rows: int) -> Tensor:
    dim = declared.rows_dim
    return tensor if tensor.shape[dim] == num_rows else tensor.narrow(dim, 0, num_rows)


def _spread(mask: Tensor, state: State, tensor: Tensor) -> Tensor:
    """Return a mask `(rows, longest)` in the shape of the state."""
    if state.rows_dim > free_dim(state):
        mask = mask.T
    shape = [
        size if dim in (state.rows_dim, free_dim(state)) else 1
        for dim, size in enumerate(tensor.shape)
    ]
    return mask.reshape(shape)


def _lengths_of_inputs(
    settings: StateConfig, rows: Sequence[InputRow], name: str
) -> list[int] | None:
    sent = [tensor for tensor in settings.inputs if not tensor.is_derived]
    for number, tensor in enumerate(sent):
        if tensor.name == name and tensor.free_dim is not None:
            return [row.shapes[number][tensor.free_dim] for row in rows]
    return None


def _lengths_of_states(rows: Sequence[InputRow], number: int) -> list[int] | None:
    if rows[0].lengths[number] is None:
        return None  # the state does not grow
    return [row.lengths[number] or 0 for row in rows]


def _check(declared: Declared, tensor: Tensor, num_rows: int) -> None:
    shape = list(tensor.shape)
    rows_dim = declared.rows_dim
    rows = shape.pop(rows_dim) if rows_dim < len(shape) else -1
    fits = len(shape) == len(declared.shape) and all(
        size in (-1, found) for size, found in zip(declared.shape, shape, strict=True)
    )
    if not fits or rows != num_rows or tensor.dtype != torch_dtype(declared.datatype):
        expected = list(map(str, declared.shape))
        expected.insert(rows_dim, "rows")
        raise TypeError(
            f"{declared.name} is {tensor.dtype} of {list(tensor.shape)} for {num_rows} rows; declared are"
            f" {declared.datatype.value} and [{', '.join(expected)}]"
        )


def _checked(declared: Declared, tensor: Tensor, lengths: list[int] | None) -> list[int] | None:
    """Return the lengths if the tensor is that long: values beyond its end are of former sequences."""
    if lengths is None or declared.free_dim is None:
        return lengths
    most = tensor.shape[free_dim(declared)]
    if min(lengths) < 0 or max(lengths) > most:
        raise TypeError(
            f"{declared.name} has room for {most}; the lengths of its rows are {lengths}"
        )
    return lengths
