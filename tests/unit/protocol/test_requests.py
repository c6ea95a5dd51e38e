"""Requests and answers, and their documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ts_stateful.asgi.http import WrongMethod
from ts_stateful.frontend.dialects.served_model import UnknownPath
from ts_stateful.frontend.open_inference.requests import read_request
from ts_stateful.frontend.parsing.limits import BodyLimits
from ts_stateful.protocol import answers
from ts_stateful.protocol.error_bodies import error_classes, error_from_body
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import (
    Command,
    Fork,
    Open,
    Prompt,
    Request,
    Rewind,
    parse_request,
)

REQUESTS: tuple[type[Command], ...] = Request.__args__
ANSWERS = (
    answers.Opened,
    answers.Forked,
    answers.Rewound,
    answers.Uploaded,
    answers.TurnPart,
    answers.TurnAnswer,
    answers.Cancelled,
    answers.Closed,
    answers.SessionInfo,
    answers.HelloAnswer,
    answers.StepAnswer,
)


def refused(document: dict[str, Any]) -> str | None:
    """Return the field that an error names."""
    with pytest.raises(InvalidRequest) as refusal:
        parse_request(document)
    return refusal.value.field


def test_all_fields_of_a_fork_are_optional() -> None:
    """All settings of the new session have a default."""
    assert parse_request({"type": "fork"}) == Fork()
    document: dict[str, Any] = {
        "session_id": "a",
        "new_session_id": "b",
        "at_turn": 0,
        "ttl_s": 1.5,
        "metadata": {"user": 7, "name": None},
    }
    assert parse_request({"type": "fork", **document}) == Fork(**document)


@pytest.mark.parametrize(
    ("document", "remedy"),
    [
        ({"type": "opne"}, "; did you mean open?"),
        ({"promt": "x"}, "; did you mean prompt?"),
        ({"input": []}, "; did you mean inputs?"),
        ({"type": 3}, "hello"),
        ({}, "hello"),
    ],
)
def test_an_unknown_type_names_what_was_meant(document: dict[str, Any], remedy: str) -> None:
    """Also where a misspelled field stands for it."""
    with pytest.raises(InvalidRequest) as refused:
        parse_request(document)
    assert refused.value.field == "type"
    assert refused.value.message.endswith(remedy)


def test_metadata_is_bounded_as_by_openai() -> None:
    """16 keys of 64 characters with strings of 512; of a key that is too long, the error says so."""
    metadata: dict[str, str | int | float | bool | None] = {
        f"{number:064}": "ä" * 512 for number in range(16)
    }
    assert parse_request({"type": "open", "metadata": metadata}) == Open(metadata=metadata)
    with pytest.raises(InvalidRequest, match="length <= 64 as a key"):
        parse_request({"type": "open", "metadata": {"n" * 65: 1}})


def test_a_rewind_needs_a_turn() -> None:
    """0 is the beginning."""
    assert parse_request({"type": "rewind", "to_turn": 0}) == Rewind(to_turn=0)
    assert refused({"type": "rewind"}) == "to_turn"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"type": "fork", "at_turn": -1}, "at_turn"),
        ({"type": "fork", "at_turn": 2**40}, "at_turn"),
        ({"type": "fork", "at_turn": True}, "at_turn"),
        ({"type": "fork", "ttl_s": 0}, "ttl_s"),
        ({"type": "fork", "ttl_s": float("inf")}, "ttl_s"),
        ({"type": "fork", "metadata": []}, "metadata"),
        ({"type": "fork", "metadata": {str(n): n for n in range(17)}}, "metadata"),
        ({"type": "open", "metadata": {"n" * 65: 1}}, "metadata"),
        ({"type": "open", "metadata": {"m": "x", "n": "x" * 513}}, "metadata.n"),
        ({"type": "open", "metadata": {"n": {}}}, "metadata.n"),
        ({"type": "open", "metadata": {"n": 2**63}}, "metadata.n"),
        ({"type": "open", "metadata": {"n": -(10**30)}}, "metadata.n"),
        ({"type": "open", "metadata": {"n": float("inf")}}, "metadata.n"),
        ({"prompt": "x", "logit_bias": {"1": 1, "2": 101}}, "logit_bias.2"),
        ({"type": "fork", "images": []}, "images"),
        ({"type": "fork", "new_session_id": 1}, "new_session_id"),
        ({"type": "rewind", "to_turn": -1}, "to_turn"),
        ({"type": "rewind", "to_turn": "1"}, "to_turn"),
        ({"type": "rewind", "to_turn": None}, "to_turn"),
        ({"type": "rewind", "to_turn": 1, "at_turn": 1}, "at_turn"),
        ({"type": "upload"}, "sha256"),
        ({"type": "upload", "sha256": "A" * 64}, "sha256"),
        ({"type": "upload", "sha256": "a" * 63}, "sha256"),
        ({"type": "upload", "sha256": "a" * 64, "part": -1}, "part"),
        ({"type": "upload", "sha256": "a" * 64, "parts": 0}, "parts"),
        ({"type": "upload", "sha256": "a" * 64, "parts": 1001}, "parts"),
        ({"prompt": "x", "images": [{"upload": "x"}]}, "images[0].upload"),
        ({"prompt": "x", "images": [{"upload": "a" * 64, "data": "x"}]}, "images[0].data"),
        ({"prompt": "x", "images": [{"upload": "a" * 64, "url": "x"}]}, "images[0]"),
        ({"type": "sing"}, "type"),
    ],
)
def test_a_wrong_field_is_named(document: dict[str, Any], field: str) -> None:
    """Nothing is ignored or guessed."""
    assert refused(document) == field


def _rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table with this first heading."""
    table = re.search(
        rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    assert table is not None, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def _names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@pytest.fixture(scope="module")
def protocol(repository: Path) -> str:
    """Return the documentation of the protocol."""
    return (repository / "docs" / "protocol.md").read_text()


def test_every_request_and_field_is_documented_with_its_default(protocol: str) -> None:
    """And no others."""
    rows = {row[0].strip("`"): row[1] for row in _rows(protocol, "`type`")}
    assert rows.keys() == {cls.__struct_config__.tag for cls in REQUESTS}
    for cls in REQUESTS:
        row = rows[str(cls.__struct_config__.tag)]
        fields = {field.name: field for field in msgspec.structs.fields(cls)}
        fields.pop("session_id")
        assert sorted(_names(row)) == sorted(fields), cls
        for field, default in re.findall(r"`(\w+)` \(([^)]*)\)", row):
            assert json.loads(default) == fields[field].default, field


def test_every_field_of_a_prompt_is_explained(protocol: str) -> None:
    """In the table of its fields."""
    explained = [name for row in _rows(protocol, "field") for name in _names(row[0])]
    assert {field.name for field in msgspec.structs.fields(Prompt)} - {"session_id"} <= {*explained}


def test_every_error_is_documented_with_its_status(protocol: str) -> None:
    """The same codes as in `errors`, and those of dialects."""
    assert {UnknownPath, WrongMethod} <= set(error_classes().values())
    documented = {code: int(row[1]) for row in _rows(protocol, "code") for code in _names(row[0])}
    assert documented == {code: cls.status for code, cls in error_classes().items()}


def test_every_field_of_an_answer_is_documented(protocol: str) -> None:
    """In docs/protocol.md."""
    nested = (answers.Usage, answers.TokenDetails, answers.Timing, answers.ServerLimits)
    for cls in (*ANSWERS, *nested):
        for field in msgspec.structs.fields(cls):
            assert re.search(rf"[`\"]{field.name}[`\"]", protocol), (cls, field.name)


def test_every_example_is_a_request_or_an_answer(protocol: str) -> None:
    """With all required fields, and no others."""
    blocks = re.findall(r"^```json\n(.*?)^```$", protocol, re.MULTILINE | re.DOTALL)
    types = set()
    documents = list(map(json.loads, blocks))
    for document in documents:
        if document.keys() in ({"type", "requests"}, {"answers"}):  # a batch
            documents += document.get("requests", document.get("answers"))
        elif "type" in document or "prompt" in document:
            types.add(type(parse_request(document)))
        elif "error" in document:
            error = error_from_body(document)
            assert error is not None
            assert error.to_body() == document
        elif "inputs" in document and "session_id" in document:
            parse_request(document)
        elif "inputs" in document:  # of the Open Inference Protocol
            header = json.dumps(document).encode()
            size = sum(one["parameters"]["binary_data_size"] for one in document["inputs"])
            asked = read_request(header + bytes(size), str(len(header)), BodyLimits())
            assert not asked.ignored
        else:
            assert any(_is_a(document, cls) for cls in ANSWERS), document
    assert types == set(REQUESTS)


def _is_a(document: dict[str, Any], cls: type[msgspec.Struct]) -> bool:
    fields = msgspec.structs.fields(cls)
    required = {field.name for field in fields if field.required}
    if not required <= document.keys() <= {field.name for field in fields}:
        return False
    return bool(msgspec.to_builtins(msgspec.convert(document, cls)).items() >= document.items())
