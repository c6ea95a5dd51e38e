"""The transport over gRPC: which of TorchServe's calls carries a request, by profile.

Owns the rules that keep TorchServe 0.12 alive: a call of the sequence profile is never half-closed before its last event,
`StreamPredictions` carries its marker, no other call is sent what it cannot answer.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import grpc

from ts_stateful.client.documents import check_size, encode, parse, seconds_to_send
from ts_stateful.client.errors import (
    DeadlineExceeded,
    ProtocolError,
    ServerRefused,
    ServerUnreachable,
    StreamStalled,
)
from ts_stateful.client.transports.rpc_calls import GOODBYE_S, Call, error_of, messages
from ts_stateful.client.transports.rpc_pipeline import GrpcPipeline
from ts_stateful.client.transports.transport import Events
from ts_stateful.pb.inference_pb2 import PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.protocol.answers import HelloAnswer
from ts_stateful.protocol.requests import Command, Hello, Prompt
from ts_stateful.protocol.session_ids import NEW_SESSION

__all__ = ["GrpcTransport", "Profile", "open_channel"]

_MARKER = {"rpc": b"StreamPredictions"}
_PIPELINE_S = 86_400.0  # a microphone is on for long; every answer has a deadline of its own
_NOT_SEQUENCE = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED)


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


class GrpcTransport:
    """Calls to one model over a channel of its own; finds the server's profile out unless it is told.

    A call about a session has its id in the metadata too, as `session_header`: a proxy reads no messages.
    """

    def __init__(
        self,
        open_channel: Callable[[], grpc.Channel],
        *,
        model: str,
        metadata: Sequence[tuple[str, str]],
        session_header: str,
        max_body_bytes: int,
        profile: Profile | None = None,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self._open_channel = open_channel
        self._channel = open_channel()
        self._stub = InferenceAPIsServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._model = model
        self._metadata = tuple(metadata)
        self._session_header = session_header.lower()
        self._profile = profile

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """The first message of the answer; see `Transport.call`."""
        if self._profile_for(command, timeout_s) is not Profile.SEQUENCE:
            return self._unary(command, timeout_s, raw)
        return self._first(self._sequence_call(command, timeout_s, raw=raw), timeout_s)

    def pipeline(self, session_id: str, timeout_s: float) -> GrpcPipeline | None:
        """See `Transport.pipeline`: only the sequence profile has one."""
        if self._profile_for(Hello(session_id=session_id), timeout_s) is not Profile.SEQUENCE:
            return None
        return GrpcPipeline(
            lambda requests: self._stub.StreamPredictions2(
                requests, timeout=_PIPELINE_S, metadata=self._metadata_of(session_id)
            ),
            lambda command, raw: self._request(command, raw, session_id),
        )

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """The messages as they come; see `Transport.stream`."""
        profile = self._profile_for(command, timeout_s)
        if profile is Profile.CONTINUOUS:
            stall_s += seconds_to_send(command)
            try:
                yield self._unary(command, min(stall_s, timeout_s))
            except DeadlineExceeded:
                if timeout_s <= stall_s:
                    raise
                raise StreamStalled(f"no answer for {stall_s:g} s") from None
        elif profile is Profile.ASYNC:
            request = self._request(command, _MARKER)
            responses = self._stub.StreamPredictions(
                request, timeout=timeout_s, metadata=self._metadata_of(command.session_id)
            )
            yield from messages(Call(responses, lambda: None, request.ByteSize()), stall_s)
        else:
            yield from messages(self._sequence_call(command, timeout_s), stall_s)

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
            except (ServerRefused, ServerUnreachable):
                if call.responses.code() not in _NOT_SEQUENCE:
                    raise
            else:
                return Profile.SEQUENCE
        answer = parse(self._unary(hello, timeout_s), HelloAnswer)
        return Profile.ASYNC if answer.profile == Profile.ASYNC.value else Profile.CONTINUOUS

    def _unary(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        request = self._request(command, raw)
        metadata = self._metadata_of(command.session_id)
        try:
            response = self._stub.Predictions(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise error_of(error, request.ByteSize()) from None
        return bytes(response.prediction)

    def _first(self, call: Call, timeout_s: float) -> bytes:
        # The call's own deadline strikes first.
        with contextlib.closing(messages(call, timeout_s + GOODBYE_S)) as answers:
            for message in answers:
                return message
        raise ProtocolError("the server ended the call without an answer")

    def _sequence_call(
        self,
        command: Command,
        timeout_s: float,
        *,
        session_id: str | None = None,
        stub: InferenceAPIsServiceStub | None = None,
        raw: Mapping[str, bytes] | None = None,
    ) -> Call:
        sequence_id = session_id or command.session_id or NEW_SESSION
        request = self._request(command, raw, sequence_id)
        ended = threading.Event()

        def requests() -> Iterator[PredictionsRequest]:
            yield request
            ended.wait()  # returning half-closes, which before the last event breaks the model for everybody

        responses = (stub or self._stub).StreamPredictions2(
            requests(),
            timeout=timeout_s,
            metadata=self._metadata_of(session_id or command.session_id),
        )
        return Call(responses, ended.set, request.ByteSize())

    def _metadata_of(self, session_id: str | None) -> tuple[tuple[str, str], ...]:
        return (
            (*self._metadata, (self._session_header, session_id)) if session_id else self._metadata
        )

    def _request(
        self,
        command: Command,
        others: Mapping[str, bytes] | None = None,
        sequence_id: str | None = None,
    ) -> PredictionsRequest:
        request = PredictionsRequest(
            model_name=self._model,
            input={"data": encode(command), **(others or {})},
            sequence_id=sequence_id,
        )
        check_size(request.ByteSize(), self.max_body_bytes)
        return request
