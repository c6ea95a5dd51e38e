"""The form of a reply, as OpenAI's clients ask for it, and those of vLLM and SGLang."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct

from ts_stateful.frontend.dialects.sampling import SamplingFields
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.response_format import ResponseFormat
from ts_stateful.protocol.strict_json import convert

__all__ = ["AskedFormat", "FormatFields", "format_of", "read_format"]


class _Schema(Struct, frozen=True, forbid_unknown_fields=True):
    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None  # a reply always follows its schema here


class _OpenAiFormat(Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    json_schema: _Schema | None = None


class _StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class FormatFields(SamplingFields, frozen=True, kw_only=True):
    """The fields of a completion that ask for a form, of which at most one may be given, and those of sampling."""

    response_format: _OpenAiFormat | None = None
    # Of vLLM, then of its earlier versions, then of SGLang.
    structured_outputs: _StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None


class AskedFormat(NamedTuple):
    """A form, and the client's name of the field that asks for it."""

    format: ResponseFormat | None = None
    field: str = "response_format"


def format_of(fields: FormatFields) -> AskedFormat:
    """Return the form that a request asks for.

    Raises:
        InvalidRequest: there are several, or it is malformed.
    """
    asked = {name: value for name in _READERS if (value := getattr(fields, name)) is not None}
    if len(asked) > 1:
        raise InvalidRequest(f"it excludes {min(asked)}; send one of them", field=max(asked))
    for name, value in asked.items():
        try:
            document = _READERS[name](value)
            return AskedFormat(document and convert(document, ResponseFormat), name)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=name) from None
    return AskedFormat()


def read_format(document: dict[str, Any]) -> ResponseFormat:
    """Return the form that a `response_format` of OpenAI's chats asks for.

    Raises:
        InvalidRequest: it is malformed.
    """
    form: ResponseFormat = convert(_read_format(convert(document, _OpenAiFormat)), ResponseFormat)
    return form


def _read_format(asked: _OpenAiFormat) -> dict[str, Any]:
    if asked.type == "json_schema":
        if asked.json_schema is None or asked.json_schema.schema is None:
            raise InvalidRequest("`json_schema` needs a `schema`")
        return {"type": "json_schema", "schema": asked.json_schema.schema}
    if asked.type == "json_object":
        return {"type": "json_object"}
    raise InvalidRequest("`type` must be one of text, json_object, json_schema")


def _read_structured(asked: _StructuredOutputs) -> dict[str, Any] | None:
    given = {name: getattr(asked, name) for name in ("json", "regex", "choice", "grammar")}
    made = [_READERS[f"guided_{name}"](value) for name, value in given.items() if value is not None]
    made += [{"type": "json_object"}] if asked.json_object else []
    if len(made) > 1:
        raise InvalidRequest("it asks for several forms; send one of them")
    return made[0] if made else None


def _json(schema: dict[str, Any] | str) -> dict[str, Any]:
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        raise InvalidRequest("it is not JSON") from None
    return {"type": "json_schema", "schema": document}


def _form(kind: str, field: str) -> Callable[[object], dict[str, Any]]:
    return lambda value: {"type": kind, field: value}


_READERS: dict[str, Any] = {
    "response_format": _read_format,
    "structured_outputs": _read_structured,
    "guided_json": _json,
    "guided_regex": _form("regex", "pattern"),
    "guided_choice": _form("choice", "options"),
    "guided_grammar": _form("grammar", "grammar"),
    "json_schema": _json,
    "regex": _form("regex", "pattern"),
    "ebnf": _form("grammar", "grammar"),
}
