"""Requests to a language model: their dialect, their session, and the message to its engine."""

from __future__ import annotations

from random import Random, SystemRandom
from typing import Final

import msgspec

from ts_stateful.frontend.dialects import Dialects
from ts_stateful.frontend.dialects.dialect import Translation, Unnamed
from ts_stateful.frontend.parsing.affinity import affinity_of
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.frontend.parsing.headers import HeaderNames, RequestHeaders
from ts_stateful.frontend.parsing.limits import BodyLimits, Parts
from ts_stateful.frontend.pending_response import PendingResponse
from ts_stateful.protocol.chat import AnyRequest, Respond
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Fork, Hello, Open, Prompt, Step, Upload
from ts_stateful.protocol.session_ids import new_session_id, resolve_session_id

__all__ = ["RequestParser", "address"]

_SYSTEM_RANDOM: Final = SystemRandom()


class RequestParser:
    """Parser of one profile's requests. `rng` makes a seed for a prompt that samples without one.

    Unless the server `keeps_sessions`, every prompt gets a session that ends with its answer.
    """

    def __init__(
        self,
        profile: Profile,
        names: HeaderNames,
        dialects: Dialects | None = None,
        limits: BodyLimits | None = None,
        *,
        keeps_sessions: bool = True,
        rng: Random = _SYSTEM_RANDOM,
    ) -> None:
        self._profile = profile
        self._other_inputs = names.grpc_inputs
        self._dialects = dialects or Dialects()
        self._limits = limits or BodyLimits()
        self._keeps_sessions = keeps_sessions
        self._rng = rng

    def parse(
        self, pending: PendingResponse, data: Parts, headers: RequestHeaders
    ) -> Submit | Event:
        """See `Parser`. Sets `pending.responder` first, so that errors are in the dialect too."""
        body = RequestBody(data, headers, self._other_inputs, self._limits)
        if _has_tensors(body):
            raise InvalidRequest(
                "this model holds conversations, which have no tensors; send prompts to /predictions",
                field="inputs",
            )
        dialect = self._dialects.of(body)
        pending.responder = dialect.responder
        translation = dialect.read(body)
        pending.responder = translation.responder
        pending.ignored = translation.ignored
        if translation.request is None:
            answer = translation.answer
            return Event(pending.request_id, EventKind.LAST, answer, translation.status)
        return self._submit(pending, translation.request, translation, body)

    def _submit(
        self,
        pending: PendingResponse,
        request: AnyRequest,
        translation: Translation,
        body: RequestBody,
    ) -> Submit:
        unnamed = translation.unnamed
        if not self._keeps_sessions:
            unnamed = _without_sessions(request, unnamed)
        request, creates_session = address(request, body.headers, unnamed)
        if isinstance(request, Step):  # the engine refuses it; its tensors are unchecked
            request = Step(session_id=request.session_id)
        takes_files = translation.responder.pulls and isinstance(request, Open | Prompt | Upload)
        if body.attachments and not takes_files:
            raise InvalidRequest("only `open`, `prompt` and `upload` take files", field="type")
        if isinstance(request, Prompt):
            request = self._complete(request, body)
        alone = creates_session or isinstance(request, Respond)
        ephemeral = alone and unnamed is Unnamed.EPHEMERAL
        if translation.choices > 1 and not ephemeral:
            raise InvalidRequest(
                "a session has one reply to a prompt; fork it, or leave the session out", field="n"
            )
        return Submit(
            pending.request_id,
            request,
            body.attachments,
            creates_session=creates_session,
            ephemeral=ephemeral,
            pull=self._pulls(request, body, can_pull=translation.responder.pulls and not ephemeral),
            profile=self._profile,
            affinity=affinity_of(request, body.headers.dialogue)
            if ephemeral and isinstance(request, Prompt)
            else (),
            choices=translation.choices,
            num_bytes=pending.num_bytes,
        )

    def _pulls(self, request: AnyRequest, body: RequestBody, *, can_pull: bool) -> bool:
        """Return True if a prompt is answered at once, and its reply read by other requests."""
        if isinstance(request, Respond):
            return request.background and not request.stream
        pulls = isinstance(request, Prompt) and not body.headers.is_http
        pulls = pulls and self._profile is Profile.CONTINUOUS
        if pulls and not can_pull:
            raise InvalidRequest(
                "in this profile a gRPC client pulls a reply from its session with `prompt` and"
                " `continue`; send this request over HTTP"
            )
        return pulls

    def _complete(self, prompt: Prompt, body: RequestBody) -> Prompt:
        if prompt.temperature > 0 and prompt.seed is None:
            # A replay on another engine has to draw the same tokens again.
            prompt = msgspec.structs.replace(prompt, seed=self._rng.getrandbits(63))
        if self._profile.pushes_to_grpc and body.is_unary:
            # A unary call takes one message; TorchServe's worker would stop at a second one.
            prompt = msgspec.structs.replace(prompt, stream=False)
        return prompt


def _has_tensors(body: RequestBody) -> bool:
    """Return True for a request of the Open Inference Protocol."""
    if not body.headers.infers:
        return False
    return body.headers.header_length is not None or isinstance(body.document.get("inputs"), list)


def _without_sessions(request: AnyRequest, unnamed: Unnamed) -> Unnamed:
    """Return the meaning of a request without a session on a server that keeps none."""
    keeps = isinstance(request, Respond) and (request.background or not request.generates)
    if keeps or isinstance(request, Open | Fork):
        raise InvalidRequest("this server keeps no sessions (`handler.statefulSessions`)")
    return Unnamed.EPHEMERAL if unnamed is Unnamed.OPENS else unnamed


def address(
    request: AnyRequest,
    headers: RequestHeaders,
    unnamed: Unnamed = Unnamed.OPENS,
    field: str = "session_id",
) -> tuple[AnyRequest, bool]:
    """Return the request with the ids of its sessions, and True if it opens one. `field` is the place of its own id.

    Raises:
        InvalidRequest: it names no session but needs one, or an id has a wrong form.
        SessionIdMismatch: it names several.
    """
    session_id = resolve_session_id(headers.session_id(), request.session_id, field)
    creates_session = isinstance(request, Open | Fork) or (
        isinstance(request, Step) and request.start
    )
    may_open = unnamed is not Unnamed.REFUSED
    if session_id is None and may_open and isinstance(request, Open | Prompt | Step):
        # The client never learns the id of an ephemeral session.
        given = headers.minted_id if unnamed is Unnamed.OPENS else None
        session_id = given or new_session_id()
        creates_session = True
    if session_id is None and not isinstance(request, Hello):
        raise InvalidRequest("name the session, in the session header or here", field="session_id")
    if isinstance(request, Fork):
        asked = resolve_session_id(None, request.new_session_id, field="new_session_id")
        made = asked or headers.minted_id or new_session_id()
        request = msgspec.structs.replace(request, new_session_id=made)
    if isinstance(request, Respond) and not creates_session:
        made = headers.minted_id or new_session_id()
        request = msgspec.structs.replace(request, new_session_id=made)
    return msgspec.structs.replace(request, session_id=session_id), creates_session
