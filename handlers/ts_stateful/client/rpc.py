"""The transport over gRPC: which of TorchServe's calls carries a request, by profile.

Owns the rules that keep TorchServe 0.12 alive: a call of the sequence profile is never half-closed before its last event,
`StreamPredictions` carries its marker, no other call is sent what it cannot answer.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import grpc

from ts_stateful.answers import HelloAnswer
from ts_stateful.client.documents import MAX_BODY_BYTES, check_size, encode, is_last, parse
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ProtocolError,
    RequestTooLarge,
    ServerRefused,
    ServerUnreachable,
    StreamStalled,
)
from ts_stateful.client.transport import Events
from ts_stateful.pb.inference_pb2 import PredictionResponse, PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.protocol import Command, Hello, Prompt
from ts_stateful.session_ids import NEW_SESSION

__all__ = ["GrpcTransport", "Profile", "open_channel"]

_MARKER = {"rpc": b"StreamPredictions"}
_GOODBYE_S = 2.0  # for the server to end a call after its last event
_LARGE_BYTES = 1_000_000  # a refusal for lack of resources is about the request itself from here on
_NOT_SEQUENCE = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED)
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED)
# TorchServe reports nearly everything as INTERNAL and puts the Java class behind the message.
_STATUS_OF_KIND = {
    "BadRequestException": 400,
    "ModelNotFoundException": 404,
    "ModelVersionNotFoundException": 404,
    "ServiceUnavailableException": 503,
}
_STATUS_OF_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}


class Profile(enum.Enum):
    """How the server's model answers over gRPC."""

    CONTINUOUS = "continuous"
    SEQUENCE = "sequence"
    ASYNC = "async"


def open_channel(
    target: str, credentials: grpc.ChannelCredentials | None, *, through_proxy: bool
) -> grpc.Channel:
    """A channel to `host:port`, encrypted if there are credentials."""
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", int(through_proxy)),
        ("grpc.enable_retries", 0),  # the client's own policy decides
        ("grpc.use_local_subchannel_pool", 1),  # one connection's troubles are its own
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if credentials is None:
        return grpc.insecure_channel(target, options)
    return grpc.secure_channel(target, credentials, options)


class _Call(NamedTuple):
    """A streaming call in progress; `half_close` ends the client's side of it."""

    responses: Any  # an iterator of PredictionResponse that can be cancelled
    half_close: Callable[[], None]
    num_bytes: int  # of the request


class GrpcTransport:
    """Calls to one model over a channel of its own; finds the server's profile out unless it is told."""

    def __init__(
        self,
        open_channel: Callable[[], grpc.Channel],
        *,
        model: str,
        metadata: Sequence[tuple[str, str]],
        max_body_bytes: int,
        profile: Profile | None = None,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self._open_channel = open_channel
        self._channel = open_channel()
        self._stub = InferenceAPIsServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._model = model
        self._metadata = tuple(metadata)
        self._profile = profile

    def call(self, command: Command, timeout_s: float) -> bytes:
        """The first message of the answer; see `Transport.call`."""
        if self._profile_for(command, timeout_s) is not Profile.SEQUENCE:
            return self._unary(command, timeout_s)
        return self._first(self._sequence_call(command, timeout_s), timeout_s)

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """The messages as they come; see `Transport.stream`."""
        profile = self._profile_for(command, timeout_s)
        if profile is Profile.CONTINUOUS:
            yield self._unary(command, timeout_s)
        elif profile is Profile.ASYNC:
            request = self._request(command, _MARKER)
            responses = self._stub.StreamPredictions(
                request, timeout=timeout_s, metadata=self._metadata
            )
            yield from _messages(_Call(responses, _nothing, request.ByteSize()), stall_s)
        else:
            yield from _messages(self._sequence_call(command, timeout_s), stall_s)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _profile_for(self, command: Command, timeout_s: float) -> Profile:
        if self._profile is None:
            self._profile = self._find_profile(command, timeout_s)
        return self._profile

    def _find_profile(self, command: Command, timeout_s: float) -> Profile:
        """Asks the way that only the sequence profile answers, and then the way that hangs only there.

        The question goes under the id of the session that it precedes: every other id would hold a place in TorchServe's
        sequence batch until it is idle for long enough. It goes over a connection of its own, which TorchServe drops when it
        has no answer.
        """
        self._request(command)  # too large a request is refused before anything is sent
        hello = Hello()
        with contextlib.closing(self._open_channel()) as channel:
            stub = InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]
            call = self._sequence_call(hello, timeout_s, session_id=command.session_id, stub=stub)
            try:
                self._first(call, timeout_s)
            except ServerRefused:
                if call.responses.code() not in _NOT_SEQUENCE:
                    raise
            else:
                return Profile.SEQUENCE
        answer = parse(self._unary(hello, timeout_s), HelloAnswer)
        return Profile.ASYNC if answer.profile == Profile.ASYNC.value else Profile.CONTINUOUS

    def _unary(self, command: Command, timeout_s: float) -> bytes:
        request = self._request(command)
        try:
            response = self._stub.Predictions(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _error_of(error, request.ByteSize()) from None
        return bytes(response.prediction)

    def _first(self, call: _Call, timeout_s: float) -> bytes:
        # The call's own deadline strikes first.
        with contextlib.closing(_messages(call, timeout_s + _GOODBYE_S)) as messages:
            for message in messages:
                return message
        raise ProtocolError("the server ended the call without an answer")

    def _sequence_call(
        self,
        command: Command,
        timeout_s: float,
        *,
        session_id: str | None = None,
        stub: InferenceAPIsServiceStub | None = None,
    ) -> _Call:
        sequence_id = session_id or command.session_id or NEW_SESSION
        request = self._request(command, sequence_id=sequence_id)
        ended = threading.Event()

        def requests() -> Iterator[PredictionsRequest]:
            yield request
            ended.wait()  # returning half-closes, which before the last event breaks the model for everybody

        responses = (stub or self._stub).StreamPredictions2(
            requests(), timeout=timeout_s, metadata=self._metadata
        )
        return _Call(responses, ended.set, request.ByteSize())

    def _request(
        self,
        command: Command,
        marker: dict[str, bytes] | None = None,
        sequence_id: str | None = None,
    ) -> PredictionsRequest:
        request = PredictionsRequest(
            model_name=self._model,
            input={"data": encode(command), **(marker or {})},
            sequence_id=sequence_id,
        )
        check_size(request.ByteSize(), self.max_body_bytes)
        return request


def _messages(call: _Call, stall_s: float) -> Events:
    """The messages of a call, read by a thread of its own because gRPC has no wait with a timeout."""
    inbox: queue.SimpleQueue[bytes | ClientError | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(call, inbox), daemon=True, name="grpc-reader")
    reader.start()
    complete = False
    try:
        while True:
            try:
                message = inbox.get(timeout=stall_s)
            except queue.Empty:
                raise StreamStalled(f"no event for {stall_s:g} s") from None
            if message is None:
                return
            if isinstance(message, ClientError):
                raise message
            complete = is_last(message)
            yield message
    finally:
        if complete:
            call.half_close()
            reader.join(_GOODBYE_S)
        call.responses.cancel()  # of no effect on a call that has ended
        call.half_close()


def _read(call: _Call, inbox: queue.SimpleQueue[bytes | ClientError | None]) -> None:
    try:
        for response in call.responses:
            if response.status.code:
                inbox.put(_refusal_of(response))
            elif response.prediction:  # an empty one keeps the stream alive and says nothing
                inbox.put(bytes(response.prediction))
    except grpc.RpcError as error:
        inbox.put(_error_of(error, call.num_bytes))
    else:
        inbox.put(None)


def _refusal_of(response: PredictionResponse) -> ServerRefused:
    """What TorchServe says in a message of `StreamPredictions2`: it has no free sequence, most often."""
    message = f"{response.status.message or 'no message'} (status code {response.status.code})"
    return ServerRefused(message, status=503)


def _nothing() -> None:
    """A call whose request ends with its only message has nothing to half-close."""


def _error_of(error: grpc.RpcError, num_bytes: int) -> ClientError:
    """What a failed call means; `num_bytes` is the size of its request."""
    code, details = error.code(), str(error.details() or "")[:500]
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("no answer within the deadline")
    if code in _BROKEN:
        return ServerUnreachable(details or code.name)
    reset = code is grpc.StatusCode.INTERNAL and "RST_STREAM" in details
    exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED
    if (reset and num_bytes > MAX_BODY_BYTES) or (exhausted and num_bytes > _LARGE_BYTES):
        return RequestTooLarge(
            f"the server does not take a request of {num_bytes:,} bytes; raise `max_request_size`"
            " in its config.properties, or send less"
        )
    if reset:
        return ServerUnreachable(details)
    message, _, kind = details.rpartition("\n")
    kind = kind.rpartition(".")[2] if message else ""
    status = _STATUS_OF_KIND.get(kind, _STATUS_OF_CODE.get(code, 500))
    return ServerRefused(
        f"{message or details or 'no message'} ({code.name})", status=status, kind=kind or None
    )
