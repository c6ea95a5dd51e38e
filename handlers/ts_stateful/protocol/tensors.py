"""Tensors on the wire: JSON and raw bodies to elements in memory, and back.

The JSON is that of the Open Inference Protocol
(https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol). A model may declare raw formats.
"""

from __future__ import annotations

import array as arrays
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ts_stateful.protocol.declarations import Datatype, Input, Raw
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import InputTensor

__all__ = ["Elements", "has_row_dimension", "numpy_dtype", "read_inputs", "read_raw", "write_text"]

_DTYPES = {
    Datatype.BOOL: np.dtype(np.bool_),
    Datatype.UINT8: np.dtype(np.uint8),
    Datatype.INT8: np.dtype(np.int8),
    Datatype.INT16: np.dtype(np.int16),
    Datatype.INT32: np.dtype(np.int32),
    Datatype.INT64: np.dtype(np.int64),
    Datatype.FP16: np.dtype(np.float16),
    Datatype.FP32: np.dtype(np.float32),
    Datatype.FP64: np.dtype(np.float64),
}
# Kinds of JSON values that a datatype accepts: a boolean is not a number, and 1.5 is not an integer.
_KINDS = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}
_PCM16_SCALE = 32768.0


class Elements(NamedTuple):
    """One tensor of one row: `data` has its elements in the machine's byte order, in C order."""

    data: bytes
    shape: tuple[int, ...]


def numpy_dtype(datatype: Datatype) -> np.dtype[Any]:
    """Return the element type; BF16 has none."""
    return _DTYPES[datatype]


def read_inputs(
    declared: Sequence[Input], sent: Sequence[InputTensor], raw: Mapping[str, bytes]
) -> list[Elements]:
    """Read the inputs of a request in the order of their declarations.

    Raises:
        InvalidRequest: one is missing, unknown, sent twice, of another datatype or shape, or out of range.
    """
    by_name: dict[str, Elements] = {}
    expected = {tensor.name: tensor for tensor in declared}
    for index, tensor in enumerate(sent):
        path = f"inputs[{index}]"
        if tensor.name not in expected:
            raise InvalidRequest(f"must be one of {', '.join(expected)}", field=f"{path}.name")
        if tensor.name in by_name:
            raise InvalidRequest("the input is sent twice; send it once", field=f"{path}.name")
        by_name[tensor.name] = _read(expected[tensor.name], tensor, path)
    for name, body in raw.items():
        if name in by_name:
            raise InvalidRequest("the input is sent twice; send it once", field=name[:64])
        by_name[name] = read_raw(expected[name], body)
    for name in expected:
        if name not in by_name:
            raise InvalidRequest(f"input {name} is missing; send it", field="inputs")
    return [by_name[name] for name in expected]


def has_row_dimension(declared: Sequence[Input], sent: Sequence[InputTensor]) -> bool:
    """Return True if a client's shapes begin with the number of rows, as those of Triton's batching models do."""
    ranks = {tensor.name: len(tensor.shape) for tensor in declared}
    return any(
        one.shape is not None and one.name in ranks and len(one.shape) == ranks[one.name] + 1
        for one in sent
    )


def read_raw(declared: Input, body: bytes) -> Elements:
    """Read an input from a body in its declared raw format.

    Raises:
        InvalidRequest: it has another format or number of elements.
    """
    name, dtype = declared.name, numpy_dtype(declared.datatype)
    if declared.raw is Raw.TEXT:
        array = _from_text(declared, body)
    elif declared.raw is Raw.PCM16:
        if len(body) % 2:
            raise InvalidRequest("16-bit samples need an even number of bytes", field=name)
        samples = np.frombuffer(body, "<i2")
        array = samples.astype(dtype)
        if dtype.kind == "f":
            array /= _PCM16_SCALE
    elif declared.raw is Raw.BYTES:
        array = _from_bytes(declared, body, name)
    else:
        raise InvalidRequest("the input has no raw format; send it as JSON", field=name)
    return Elements(array.tobytes(), _shape_of(declared, array.size, name))


def write_text(values: Sequence[float]) -> bytes:
    """Return the raw answer of format `text`."""
    return ",".join(map(str, values)).encode()


def _from_bytes(declared: Input, body: bytes, path: str) -> np.ndarray[Any, Any]:
    dtype = numpy_dtype(declared.datatype)
    if len(body) % dtype.itemsize:
        raise InvalidRequest(
            f"{len(body)} bytes are no {declared.datatype.value} elements of {dtype.itemsize} bytes each",
            field=path,
        )
    if dtype.kind == "b" and max(body, default=0) > 1:
        raise InvalidRequest(f"byte {max(body)} is not a BOOL; send 0 or 1", field=path)
    return np.frombuffer(body, dtype.newbyteorder("<")).astype(dtype)


def _from_text(declared: Input, body: bytes) -> np.ndarray[Any, Any]:
    try:
        text = body.decode("ascii")
        if "_" in text:  # which Python accepts in numbers
            raise ValueError
        words = text.replace(",", " ").split()
        whole = numpy_dtype(declared.datatype).kind in "biu"
        numbers: list[float] = list(map(int if whole else float, words))
    except ValueError:
        raise InvalidRequest(
            f"the body is not {declared.datatype.value} numbers; separate them by commas or spaces",
            field=declared.name,
        ) from None
    return _array(declared, numbers, declared.name)


def _read(declared: Input, sent: InputTensor, path: str) -> Elements:
    if sent.datatype is not None and sent.datatype != declared.datatype.value:
        raise InvalidRequest(f"must be {declared.datatype.value}", field=f"{path}.datatype")
    if isinstance(sent.data, bytes):
        data_path = f"{path}.parameters.binary_data_size"
        array = _from_bytes(declared, sent.data, data_path)
    else:
        data_path = f"{path}.data"
        array = _array(declared, sent.data, data_path)
    shape = array.shape if sent.shape is None else sent.shape
    if math.prod(shape) != array.size:
        raise InvalidRequest(
            f"{array.size} elements do not fill the shape {list(shape)}", field=data_path
        )
    return Elements(array.tobytes(), _fitted(declared, shape, array, f"{path}.shape"))


def _array(declared: Input, data: object, path: str) -> np.ndarray[Any, Any]:
    dtype = numpy_dtype(declared.datatype)
    try:
        if dtype.char in "fd" and isinstance(data, list) and {float}.issuperset(map(type, data)):
            # Most steps: an `array` rounds as numpy does, without a search for the elements' common type.
            floats = arrays.array(dtype.char, data)
            if data and math.isfinite(sum(floats)):
                return np.frombuffer(floats, dtype)
        # An array of strings would have room for the longest one in every element.
        kinds = set(map(type, np.array(data, dtype=object).ravel()))
        if not (kinds <= {int, float} or kinds == {bool}):
            raise ValueError
        array = np.asarray(data)
        if array.dtype.kind == "O" and dtype.kind == "f":  # of whole numbers that no C type holds
            array = array.astype(np.float64)
        if array.size and array.dtype.kind not in _KINDS[dtype.kind]:
            raise ValueError
        with np.errstate(over="ignore"):
            typed = array.astype(dtype)
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequest(
            f"must be {declared.datatype.value} elements, flat or nested by the shape", field=path
        ) from None
    exact = np.isfinite(typed) if dtype.kind == "f" else typed == array
    if not exact.all():
        raise InvalidRequest(
            f"an element is out of the range of {declared.datatype.value}", field=path
        )
    return typed


def _fitted(
    declared: Input, shape: Sequence[int], array: np.ndarray[Any, Any], path: str
) -> tuple[int, ...]:
    """Fit a shape, perhaps with a leading 1, to the declared shape of a row. Data without a shape may be flat."""
    if shape == declared.shape:
        return declared.shape
    for candidate in (tuple(shape), tuple(shape[1:]) if shape[:1] == (1,) else None):
        if candidate is not None and _matches(declared.shape, candidate):
            return _bounded(declared, candidate, path)
    if array.ndim == 1 and tuple(shape) == array.shape:
        return _shape_of(declared, array.size, path)
    raise InvalidRequest(f"{list(shape)} must be {list(declared.shape)}, as declared", field=path)


def _matches(declared: Sequence[int], shape: Sequence[int]) -> bool:
    return len(declared) == len(shape) and all(
        asked > 0 if size < 0 else asked == size
        for size, asked in zip(declared, shape, strict=True)
    )


def _shape_of(declared: Input, count: int, path: str) -> tuple[int, ...]:
    """Return the declared shape for a number of elements."""
    num_units, rest = divmod(count, declared.num_elements)
    if rest or not num_units or (declared.free_dim is None and num_units != 1):
        raise InvalidRequest(
            f"{count} elements do not fill the shape {list(declared.shape)}", field=path
        )
    return _bounded(
        declared, tuple(num_units if size < 0 else size for size in declared.shape), path
    )


def _bounded(declared: Input, shape: tuple[int, ...], path: str) -> tuple[int, ...]:
    length = 0 if declared.free_dim is None else shape[declared.free_dim]
    if declared.max is not None and length > declared.max:
        raise InvalidRequest(
            f"{length} are too many for one step; send at most {declared.max}", field=path
        )
    return shape


assert sys.byteorder == "little", "processes exchange elements in the byte order of the machine"
