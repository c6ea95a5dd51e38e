"""From a row of a batch to a command for an engine: the dialects of HTTP and gRPC, and which session is meant.

Owns where the JSON and the images of a request are found, and what the worker fills in (a new id, a seed). Pure: no model, no
device, no fetch. Knows nothing of how answers go back.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ts_stateful.config import Profile, StateConfig
from ts_stateful.errors import InvalidRequest
from ts_stateful.events import Submit
from ts_stateful.frontend.headers import HeaderNames, RowHeaders
from ts_stateful.frontend.steps import StepReader
from ts_stateful.protocol import (
    Fork,
    Hello,
    Open,
    Prompt,
    Request,
    Step,
    parse_json,
    parse_request,
)
from ts_stateful.session_ids import new_session_id, resolve_session_id

__all__ = ["RequestParser"]

_PUSHED = b"StreamPredictions"
_CURL_HINT = "send the JSON as the body, with -H 'Content-Type: application/json'"


class RequestParser:
    """Parses rows of one profile; `settings` are those of a model with recurrent state.

    `new_seed` makes a seed for a prompt that samples without one.
    """

    def __init__(
        self,
        profile: Profile,
        names: HeaderNames,
        settings: StateConfig | None = None,
        *,
        new_seed: Callable[[], int] = lambda: secrets.randbelow(2**63),
    ) -> None:
        self._profile = profile
        self._names = names
        self._new_seed = new_seed
        self._steps = StepReader(settings, names) if settings else None

    def parse(self, request_id: str, data: Mapping[str, Any], headers: RowHeaders) -> Submit:
        """The request in a row, as an engine takes it.

        Raises:
            StatefulError: it is refused; the error is the answer.
        """
        if self._steps is not None:
            return self._parse_step(self._steps, request_id, data, headers)
        key, others = _split(data)
        if not headers.is_http:
            self._refuse_unknown_inputs(others)
        attachments = _attachments(others, key) if headers.is_http else ()
        document = _document(data[key])
        request, opens = _address(parse_request(document), headers)
        if attachments and not isinstance(request, Open | Prompt):
            raise InvalidRequest("files go with `open` and `prompt` alone", field="type")
        if isinstance(request, Prompt):
            request = self._completed(request, data, headers)
        pulled = isinstance(request, Prompt) and not headers.is_http
        return Submit(
            request_id,
            request,
            attachments,
            opens=opens,
            pull=pulled and self._profile is Profile.CONTINUOUS,
        )

    def _parse_step(
        self, steps: StepReader, request_id: str, data: Mapping[str, Any], headers: RowHeaders
    ) -> Submit:
        content = steps.take_apart(data, headers)
        if content.document is None:
            _split(data, steps.hint)  # says what is missing
        if headers.is_http and content.others:
            name = next(iter(content.others))
            raise InvalidRequest("not an input that takes raw bytes", field=name[:64])
        self._refuse_unknown_inputs(content.others)
        document = _document(content.document)
        if content.raw and "type" not in document:
            document = {"type": "step", **document}
        request = parse_request(document)
        if not isinstance(request, Step):
            if content.raw:
                raise InvalidRequest("raw bytes go with `step` alone", field="type")
            request, opens = _address(request, headers)
            return Submit(request_id, request, opens=opens)
        step, opens = _address(steps.complete(request, headers, content.others), headers)
        assert isinstance(step, Step)
        elements = steps.elements(step, content.raw)
        return Submit(
            request_id,
            msgspec.structs.replace(step, inputs=()),
            tuple(tensor.data for tensor in elements),
            opens=opens,
            shapes=tuple(tensor.shape for tensor in elements),
            raw=content.body_is_raw,
        )

    def _completed(self, prompt: Prompt, data: Mapping[str, Any], headers: RowHeaders) -> Prompt:
        if prompt.temperature > 0 and prompt.seed is None:
            # A replay after an engine's death has to draw the same tokens again.
            prompt = msgspec.structs.replace(prompt, seed=self._new_seed())
        is_unary = not headers.is_http and data.get("rpc") != _PUSHED
        if self._profile is Profile.ASYNC and is_unary:
            # A second message to a unary call would take the worker down.
            prompt = msgspec.structs.replace(prompt, stream=False)
        return prompt

    def _refuse_unknown_inputs(self, others: Mapping[str, Any]) -> None:
        # What TorchServe's own clients may send beside the JSON is ignored, as those headers are over HTTP.
        known = {"rpc", *self._names.starts, *self._names.ends}
        unknown = next((name for name in others if name.lower() not in known), None)
        if unknown is not None:
            raise InvalidRequest("unknown input; the JSON goes into `data`", field=unknown[:64])


def _split(data: Mapping[str, Any], hint: str = _CURL_HINT) -> tuple[str, dict[str, Any]]:
    """The key of the JSON, and everything else; `hint` says how to send it."""
    if not data:
        raise InvalidRequest(f"the request has no body; {hint}")
    key = next((name for name in ("data", "body") if name in data), None)
    if key is None:
        raise InvalidRequest(f"a form without a part named `data`; {hint}")
    return key, {name: value for name, value in data.items() if name != key}


def _document(value: Any) -> dict[str, Any]:
    if isinstance(value, str | bytes | bytearray):
        return parse_json(value)
    try:
        # Decoded by TorchServe, loosely; back to text, so that what is refused does not depend on who decodes.
        return parse_json(json.dumps(value))
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


def _attachments(others: Mapping[str, Any], key: str) -> tuple[bytes, ...]:
    files = []
    for name, value in others.items():
        if key != "data":
            raise InvalidRequest(
                "unknown parameter; a form takes its JSON in a part named `data`", field=name[:64]
            )
        if not isinstance(value, str | bytes | bytearray):
            raise InvalidRequest("not an image file", field=name[:64])
        files.append(value.encode() if isinstance(value, str) else bytes(value))
    return tuple(files)


def _address(request: Request, headers: RowHeaders) -> tuple[Request, bool]:
    """The request with the ids of the sessions that it is about, and whether it opens one."""
    session_id = resolve_session_id(headers.session_id(), request.session_id)
    opens = isinstance(request, Open | Fork) or (isinstance(request, Step) and request.start)
    if session_id is None and isinstance(request, Open | Prompt | Step):
        session_id = headers.minted_id or new_session_id()
        opens = True
    if session_id is None and not isinstance(request, Hello):
        raise InvalidRequest("name the session, in the session header or here", field="session_id")
    if isinstance(request, Fork):
        asked = resolve_session_id(None, request.new_session_id, field="new_session_id")
        made = asked or headers.minted_id or new_session_id()
        request = msgspec.structs.replace(request, new_session_id=made)
    return msgspec.structs.replace(request, session_id=session_id), opens
