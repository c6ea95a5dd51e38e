"""JSON of clients: one meaning, or an error."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.strict_json import parse_json

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(st.dictionaries(st.text(), _VALUES), st.booleans())
def test_a_document_means_the_same_to_each_parser(document: dict[str, Any], escaped: bool) -> None:
    """Also its types, signs of zero, and numbers that are too large for a float."""
    text = json.dumps(document, ensure_ascii=escaped).replace("Infinity", "1e999")
    assert repr(parse_json(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"a": 1, "a": 1}', "a"),
        ('{"a": {"b": [], "b": "x"}}', "b"),
        ('[{"a": "a", "a": "a"}]', "a"),
        ('{"a": [{"x\\"y": 1, "x\\"y": 2}]}', 'x"y'),
        ('{"a": 1, "\\u0061": 1}', "a"),
        ('{"a": 1, "b": "' + "x" * 100_000 + '", "a": 1}', "a"),
    ],
)
def test_a_key_that_occurs_twice_is_named(body: str, field: str) -> None:
    """Whichever of the parsers reads it."""
    with pytest.raises(InvalidRequest, match="occurs twice") as refusal:
        parse_json(body.encode())
    assert refusal.value.field == field


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "01", "'x'", "[1,]", '"\x01"', "9" * 5000])
def test_what_is_not_json_is_refused(text: str) -> None:
    """Standard parsers of Python take some of these."""
    with pytest.raises(InvalidRequest):
        parse_json(f'{{"a": {text}}}'.encode())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"temperature": NaN}', "temperature"),
        ('{"a": 1, "inputs": [{"data": [1, [-Infinity]]}]}', "inputs[0].data[1][0]"),
        ("NaN", None),
    ],
)
def test_a_number_that_json_lacks_is_named(body: str, field: str | None) -> None:
    """Wherever it stands."""
    with pytest.raises(InvalidRequest, match="send a finite number") as refusal:
        parse_json(body.encode())
    assert refusal.value.field == field


def test_a_number_beyond_all_floats_is_infinite() -> None:
    """What reads the field decides if that is an error."""
    assert parse_json(b'{"a": 1e400}') == {"a": math.inf}


def test_a_byte_order_mark_is_named() -> None:
    """Editors put it before a text, where people do not see it."""
    with pytest.raises(InvalidRequest, match="begins with a byte order mark; send it without"):
        parse_json(b'\xef\xbb\xbf{"prompt": "hi"}')
