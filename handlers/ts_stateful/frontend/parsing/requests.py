"""From a row of a batch to a command for an engine: which dialect it is in, and which session is meant.

Owns what the worker fills in (a new id, a seed) and what a request may be that names no session. Pure: no model, no device, no
fetch. Knows nothing of how answers go back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ts_stateful.config.schema import StateConfig
from ts_stateful.frontend.dialects import Dialects
from ts_stateful.frontend.dialects.dialect import Letter, Translation, Unnamed, Voice
from ts_stateful.frontend.parsing.body import check_inputs, document_of, read_content, split
from ts_stateful.frontend.parsing.headers import HeaderNames, RowHeaders
from ts_stateful.frontend.parsing.steps import StepReader
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import (
    AnyRequest,
    Fork,
    Hello,
    Open,
    Prompt,
    Step,
    Upload,
    parse_request,
)
from ts_stateful.protocol.session_ids import new_session_id, resolve_session_id

__all__ = ["RequestParser"]

_PUSHED = b"StreamPredictions"


class RequestParser:
    """Parses rows of one profile; `settings` are those of a model with recurrent state, which has no dialects.

    Where the server `keeps_sessions` not, every prompt stands alone. `new_seed` makes a seed for a prompt that samples without
    one.
    """

    def __init__(
        self,
        profile: Profile,
        names: HeaderNames,
        settings: StateConfig | None = None,
        *,
        dialects: Dialects | None = None,
        keeps_sessions: bool = True,
        new_seed: Callable[[], int] = lambda: secrets.randbelow(2**63),
    ) -> None:
        self._profile = profile
        self._dialects = dialects or Dialects()
        self._keeps_sessions = keeps_sessions
        self._new_seed = new_seed
        self._steps = StepReader(settings, names) if settings else None
        # What TorchServe's own clients may send beside the JSON is ignored, as those headers are over HTTP.
        self._other_inputs = frozenset({"rpc", *names.starts, *names.ends})

    def parse(
        self,
        request_id: str,
        data: Mapping[str, Any],
        headers: RowHeaders,
        speak: Callable[[Voice], None] = lambda voice: None,
    ) -> Submit | Event:
        """The request in a row, as an engine takes it, or its answer where no engine is asked.

        `speak` is told, as soon as it is known, in which voice the request is to be answered or refused.

        Raises:
            StatefulError: it is refused; the error is the answer.
        """
        if self._steps is not None:
            return self._parse_step(self._steps, request_id, data, headers)
        others = self._other_inputs
        letter = Letter(
            headers,
            lambda: read_content(
                data,
                is_http=headers.is_http,
                content_type=headers.content_type,
                other_inputs=others,
            ),
        )
        dialect = self._dialects.of(letter)
        speak(dialect.voice)
        translation = dialect.read(letter)
        speak(translation.voice)
        if translation.request is None:
            return Event(request_id, EventKind.LAST, translation.answer)
        return self._submit(request_id, translation.request, translation, letter, data)

    def _submit(
        self,
        request_id: str,
        request: AnyRequest,
        translation: Translation,
        letter: Letter,
        data: Mapping[str, Any],
    ) -> Submit:
        headers, attachments = letter.headers, letter.content.attachments
        unnamed = translation.unnamed
        if not self._keeps_sessions:
            unnamed = _without_sessions(request, unnamed)
        request, creates_session = _address(request, headers, unnamed)
        if isinstance(request, Step):  # to be refused; what its tensors are, nobody has looked at
            request = Step(session_id=request.session_id)
        takes_files = translation.voice.pulls and isinstance(request, Open | Prompt | Upload)
        if attachments and not takes_files:
            raise InvalidRequest("files go with `open`, `prompt` and `upload` alone", field="type")
        if isinstance(request, Prompt):
            request = self._completed(request, data, headers)
        pulled = isinstance(request, Prompt) and not headers.is_http
        pulled = pulled and self._profile is Profile.CONTINUOUS
        ephemeral = creates_session and unnamed is Unnamed.ALONE
        if pulled and (ephemeral or not translation.voice.pulls):
            raise InvalidRequest(
                "in this profile replies over gRPC are pulled from their sessions by `prompt` and `continue`; ask over HTTP"
            )
        return Submit(
            request_id,
            request,
            attachments,
            creates_session=creates_session,
            ephemeral=ephemeral,
            pull=pulled,
            profile=self._profile,
        )

    def _parse_step(
        self, steps: StepReader, request_id: str, data: Mapping[str, Any], headers: RowHeaders
    ) -> Submit:
        content = steps.take_apart(data, headers)
        if content.document is None:
            split(data, steps.hint)  # says what is missing
        if headers.is_http and content.others:
            name = next(iter(content.others))
            raise InvalidRequest("not an input that takes raw bytes", field=name[:64])
        check_inputs(content.others, self._other_inputs)
        document = document_of(content.document)
        if content.raw and "type" not in document:
            document = {"type": "step", **document}
        request = parse_request(document)
        if not isinstance(request, Step):
            if content.raw:
                raise InvalidRequest("raw bytes go with `step` alone", field="type")
            request, creates_session = _address(request, headers)
            return Submit(
                request_id, request, creates_session=creates_session, profile=self._profile
            )
        step, creates_session = _address(steps.complete(request, headers, content.others), headers)
        assert isinstance(step, Step)
        elements = steps.elements(step, content.raw)
        return Submit(
            request_id,
            msgspec.structs.replace(step, inputs=()),
            tuple(tensor.data for tensor in elements),
            creates_session=creates_session,
            shapes=tuple(tensor.shape for tensor in elements),
            raw=content.body_is_raw,
            profile=self._profile,
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


def _without_sessions(request: AnyRequest, unnamed: Unnamed) -> Unnamed:
    """What becomes of a request without a session on a server that keeps none."""
    if isinstance(request, Open | Fork):
        raise InvalidRequest("this server keeps no sessions (`handler.statefulSessions`)")
    return Unnamed.ALONE if unnamed is Unnamed.OPENS else unnamed


def _address(
    request: AnyRequest, headers: RowHeaders, unnamed: Unnamed = Unnamed.OPENS
) -> tuple[AnyRequest, bool]:
    """The request with the ids of the sessions that it is about, and whether it opens one."""
    session_id = resolve_session_id(headers.session_id(), request.session_id)
    creates_session = isinstance(request, Open | Fork) or (
        isinstance(request, Step) and request.start
    )
    may_open = unnamed is not Unnamed.REFUSED
    if session_id is None and may_open and isinstance(request, Open | Prompt | Step):
        # One that nobody shall know.
        given = headers.minted_id if unnamed is Unnamed.OPENS else None
        session_id = given or new_session_id()
        creates_session = True
    if session_id is None and not isinstance(request, Hello):
        raise InvalidRequest("name the session, in the session header or here", field="session_id")
    if isinstance(request, Fork):
        asked = resolve_session_id(None, request.new_session_id, field="new_session_id")
        made = asked or headers.minted_id or new_session_id()
        request = msgspec.structs.replace(request, new_session_id=made)
    return msgspec.structs.replace(request, session_id=session_id), creates_session
