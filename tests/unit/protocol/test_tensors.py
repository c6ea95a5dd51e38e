"""Tensors of clients: JSON, flat or nested, and raw bodies."""

from __future__ import annotations

import functools
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.protocol.declarations import Datatype, Input, Raw
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import InputTensor
from ts_stateful.protocol.strict_json import parse_json
from ts_stateful.protocol.tensors import numpy_dtype, read_inputs, read_raw, write_text


def declared(**fields: Any) -> Input:
    """Declare an input as in YAML."""
    return msgspec.convert({"name": "x", **fields}, Input)


def read(tensor: Input, data: Any, **fields: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Read JSON data, and return its elements and shape."""
    (made,) = read_inputs([tensor], [InputTensor("x", data, **fields)], {})
    return np.frombuffer(made.data, numpy_dtype(tensor.datatype)).tolist(), made.shape


def refused(tensor: Input, data: Any, **fields: Any) -> str | None:
    """Return the field that an error names."""
    with pytest.raises(InvalidRequest) as error:
        read(tensor, data, **fields)
    return error.value.field


def test_strings_take_no_memory() -> None:
    """An array of strings would have room for the longest one in each of its elements: here 400 GB."""
    assert refused(declared(shape=[-1]), ["x" * 1_000_000] + [""] * 100_000) == "inputs[0].data"
    assert refused(declared(shape=[-1]), [[1, "x" * 1_000_000]] * 100_000) == "inputs[0].data"


def test_data_is_flat_or_nested_and_may_have_a_shape() -> None:
    """A leading 1 is the row."""
    matrix = declared(shape=[-1, 2])
    for data, fields in (
        ([[1, 2], [3, 4.5]], {}),
        ([[[1, 2], [3, 4.5]]], {}),
        ([1, 2, 3, 4.5], {}),
        ([1, 2, 3, 4.5], {"shape": (2, 2)}),
        ([1, 2, 3, 4.5], {"shape": (1, 2, 2), "datatype": "FP32"}),
    ):
        assert read(matrix, data, **fields) == ([1, 2, 3, 4.5], (2, 2))
    assert read(declared(shape=[]), [3]) == ([3], ())
    assert read(declared(datatype="BOOL", shape=[2]), [True, False]) == ([True, False], (2,))


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.FP32, Datatype.FP64])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_are_rounded_as_by_numpy(datatype: Datatype, numbers: list[float]) -> None:
    """Flat or nested; one beyond the range of the datatype is refused."""
    tensor = declared(datatype=datatype.value, shape=[-1])
    with np.errstate(over="ignore"):
        rounded = np.array(numbers).astype(numpy_dtype(datatype))
    if np.isfinite(rounded).all():
        assert str(read(tensor, numbers)[0]) == str(rounded.tolist())
        assert str(read(tensor, [numbers])[0]) == str(rounded.tolist())
    else:
        assert refused(tensor, numbers) == refused(tensor, [numbers]) == "inputs[0].data"


@pytest.mark.parametrize(
    ("fields", "data", "others", "field"),
    [
        ({"shape": [2]}, [1, 2, 3], {}, "inputs[0].shape"),
        ({"shape": [2]}, [[1, 2]], {"shape": (2, 1)}, "inputs[0].shape"),
        ({"shape": [2]}, [1, 2], {"shape": (3,)}, "inputs[0].data"),
        ({"shape": [2]}, [1.5, 2.5, 3.5], {"shape": (2,)}, "inputs[0].data"),
        ({"shape": [2]}, [1.5, 2.5, 3.5], {}, "inputs[0].shape"),
        ({"shape": [2]}, [1, [2]], {}, "inputs[0].data"),
        (
            {"shape": [-1]},
            functools.reduce(lambda inner, _: [inner], range(50), list[object]([1])),
            {},
            "inputs[0].shape",
        ),
        ({"shape": [2]}, ["1", "2"], {}, "inputs[0].data"),
        ({"shape": [2]}, [None, 1], {}, "inputs[0].data"),
        ({"shape": [2]}, [True, False], {}, "inputs[0].data"),
        ({"shape": [2]}, [True, 1.5], {}, "inputs[0].data"),
        ({"shape": [2], "datatype": "INT64"}, [True, 2], {}, "inputs[0].data"),
        ({"shape": [2], "datatype": "BOOL"}, [True, 1], {}, "inputs[0].data"),
        ({"shape": [2]}, [10**39, 1], {}, "inputs[0].data"),
        ({"shape": [1], "datatype": "FP64"}, [10**400], {}, "inputs[0].data"),
        ({"shape": [2], "datatype": "INT64"}, [10**20, 1], {}, "inputs[0].data"),
        ({"shape": [1]}, {"a": 1}, {}, "inputs[0].data"),
        ({"shape": [-1]}, [], {}, "inputs[0].shape"),
        ({"shape": [1]}, [1e39], {}, "inputs[0].data"),
        ({"shape": [1], "datatype": "INT64"}, [1.5], {}, "inputs[0].data"),
        ({"shape": [1], "datatype": "INT64"}, [2**63], {}, "inputs[0].data"),
        ({"shape": [1], "datatype": "INT64"}, [2**70], {}, "inputs[0].data"),
        ({"shape": [1], "datatype": "INT8"}, [128], {}, "inputs[0].data"),
        ({"shape": [1], "datatype": "UINT8"}, [-1], {}, "inputs[0].data"),
        ({"shape": [1], "datatype": "BOOL"}, [2], {}, "inputs[0].data"),
        ({"shape": [1]}, [1], {"datatype": "FP64"}, "inputs[0].datatype"),
        ({"shape": [-1], "max": 2}, [1, 2, 3], {}, "inputs[0].shape"),
        ({"shape": [-1, 1], "max": 2}, [1, 2, 3], {}, "inputs[0].shape"),
    ],
)
def test_a_contradiction_to_the_declaration_is_named(
    fields: dict[str, Any], data: Any, others: dict[str, Any], field: str
) -> None:
    """Nothing is converted silently."""
    assert refused(declared(**fields), data, **others) == field


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_floats_may_be_large_whole_numbers(datatype: str) -> None:
    """As JavaScript writes 1e20, alone, nested and beside others."""
    tensor = declared(datatype=datatype, shape=[-1, 2])
    large = numpy_dtype(tensor.datatype).type(1e20)
    text = b"[[100000000000000000000, 1], [-100000000000000000000, 0.5]]"
    data = parse_json(b'{"data": %b}' % text)["data"]
    assert read(tensor, data) == ([large, 1, -large, 0.5], (2, 2))


def test_every_input_is_sent_once() -> None:
    """No more, no less."""
    x, y = declared(shape=[1]), declared(name="y", shape=[1], raw="text")
    one = InputTensor("x", [1])
    for sent in ([one], [one, one], [one, InputTensor("z", [1])]):
        with pytest.raises(InvalidRequest):
            read_inputs([x, y], sent, {})
    with pytest.raises(InvalidRequest):
        read_inputs([x, y], [one, InputTensor("y", [1])], {"y": b"1"})
    assert [made.shape for made in read_inputs([x, y], [one], {"y": b"2"})] == [(1,), (1,)]


@pytest.mark.parametrize(
    ("fields", "body", "expected"),
    [
        ({"raw": "text", "shape": [1], "datatype": "INT64"}, b" 7\n", [7]),
        ({"raw": "text", "shape": [-1]}, b"1.5, 2 3", [1.5, 2, 3]),
        ({"raw": "pcm16", "shape": [-1]}, struct.pack("<2h", -32768, 16384), [-1, 0.5]),
        ({"raw": "pcm16", "shape": [2], "datatype": "INT16"}, b"\1\0\2\0", [1, 2]),
        ({"raw": "bytes", "shape": [-1], "datatype": "FP64"}, struct.pack("<d", 0.1), [0.1]),
        ({"raw": "bytes", "shape": [-1], "datatype": "BOOL"}, b"\0\1", [False, True]),
    ],
)
def test_raw_bodies(fields: dict[str, Any], body: bytes, expected: list[float]) -> None:
    """In the declared format."""
    tensor = declared(**fields)
    made = read_raw(tensor, body)
    assert np.frombuffer(made.data, numpy_dtype(tensor.datatype)).tolist() == expected
    assert made.shape == (len(expected),)


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"raw": "text", "shape": [1], "datatype": "INT64"}, b"1.5"),
        ({"raw": "text", "shape": [1]}, b"one"),
        ({"raw": "text", "shape": [1]}, b"nan"),
        ({"raw": "text", "shape": [1]}, b"1_000"),
        ({"raw": "text", "shape": [1]}, b"1 2"),
        ({"raw": "text", "shape": [1]}, "\N{FULLWIDTH DIGIT ONE}".encode()),
        ({"raw": "text", "shape": [1], "datatype": "INT64"}, b"9" * 30),
        ({"raw": "pcm16", "shape": [-1]}, b"123"),
        ({"raw": "pcm16", "shape": [-1]}, b""),
        ({"raw": "pcm16", "shape": [3]}, b"1234"),
        ({"raw": "bytes", "shape": [-1]}, b"12345"),
        ({"raw": "bytes", "shape": [-1], "datatype": "BOOL"}, b"\0\1\2"),
        ({"shape": [-1]}, b"1234"),
    ],
)
def test_raw_bodies_that_are_refused(fields: dict[str, Any], body: bytes) -> None:
    """By the name of the input."""
    with pytest.raises(InvalidRequest) as error:
        read_raw(declared(**fields), body)
    assert error.value.field == "x"


def test_every_datatype_but_one_has_a_format() -> None:
    """BF16 is for states only."""
    for datatype in Datatype:
        if datatype is not Datatype.BF16:
            assert numpy_dtype(datatype).itemsize in (1, 2, 4, 8)
    assert write_text([1, 2.5]) == b"1,2.5"
    assert {raw.value for raw in Raw} == {"text", "pcm16", "bytes"}
