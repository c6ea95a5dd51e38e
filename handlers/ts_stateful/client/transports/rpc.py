"""The transport over gRPC: the model's profile decides which of TorchServe's calls carries a request.

These rules keep TorchServe 0.12 alive: a call of the sequence profile is never half-closed before its last event,
`StreamPredictions` carries its marker, and no other call is sent what it cannot answer.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Mapping
from pathlib import Path

import grpc

from ts_stateful.client.addresses import Address
from ts_stateful.client.documents import parse, seconds_to_send
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ProtocolError,
    ServerRefused,
    ServerUnreachable,
    StreamStalled,
)
from ts_stateful.client.transports.rpc_calls import (
    GOODBYE_S,
    GrpcCall,
    Inbox,
    Outgoing,
    RequestBuilder,
    error_of,
    messages,
    read,
)
from ts_stateful.client.transports.transport import Events, TransportOptions
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.protocol.answers import HelloAnswer
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Command, Hello, Prompt
from ts_stateful.protocol.session_ids import NEW_SESSION

__all__ = ["GrpcTransport"]

_TIMEOUT_S = 86_400.0  # a microphone is on for long; every answer has a deadline of its own
_MARKER = {"rpc": b"StreamPredictions"}
_NOT_SEQUENCE = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED)


class GrpcTransport:
    """Calls to one model over a channel of its own; finds the server's profile out if it is not given."""

    def __init__(self, address: Address, options: TransportOptions) -> None:
        self.max_body_bytes = options.max_body_bytes
        self._address = address
        self._credentials: grpc.ChannelCredentials | None = None
        if address.scheme == "grpcs":
            trusted = None
            if options.ca_file is not None:
                address.tls_context(options.ca_file)  # refuses a file without certificates
                trusted = Path(options.ca_file).read_bytes()
            self._credentials = grpc.ssl_channel_credentials(trusted)
        self._profile = options.profile
        self._builder = RequestBuilder(options)
        self._channel = self._open_channel()
        self._stub = InferenceAPIsServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """Return the first message of the answer; see `Transport.call`."""
        if self._profile_for(command, timeout_s) is not Profile.SEQUENCE:
            return self._unary(command, timeout_s, raw)
        return self._first(self._sequence_call(command, timeout_s, raw=raw), timeout_s)

    def pipeline(self, session_id: str, timeout_s: float) -> _GrpcPipeline | None:
        """See `Transport.pipeline`: in these profiles one call takes many requests."""
        profile = self._profile_for(Hello(session_id=session_id), timeout_s)
        if profile not in (Profile.SEQUENCE, Profile.ASGI):
            return None
        return _GrpcPipeline(self._stub, self._builder, session_id)

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """Yield the messages as they come; see `Transport.stream`."""
        profile = self._profile_for(command, timeout_s)
        if profile is Profile.CONTINUOUS:
            stall_s += seconds_to_send(command)
            try:
                yield self._unary(command, min(stall_s, timeout_s))
            except DeadlineExceeded:
                if timeout_s <= stall_s:
                    raise
                raise StreamStalled(f"no answer for {stall_s:g} s") from None
        elif profile.pushes_to_grpc:
            request = self._builder.request(command, _MARKER)
            responses = self._stub.StreamPredictions(
                request, timeout=timeout_s, metadata=self._builder.metadata(command.session_id)
            )
            yield from messages(GrpcCall(responses, request.ByteSize()), stall_s)
        else:
            yield from messages(self._sequence_call(command, timeout_s), stall_s)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _open_channel(self) -> grpc.Channel:
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", int(self._address.through_proxy)),
            ("grpc.enable_retries", 0),  # the client's own policy decides
            ("grpc.use_local_subchannel_pool", 1),  # failures of one connection affect no other one
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if self._credentials is None:
            return grpc.insecure_channel(self._address.authority, options)
        return grpc.secure_channel(self._address.authority, self._credentials, options)

    def _profile_for(self, command: Command, timeout_s: float) -> Profile:
        if self._profile is None:
            self._profile = self._find_profile(command, timeout_s)
        return self._profile

    def _find_profile(self, command: Command, timeout_s: float) -> Profile:
        """Send `hello` by the call that TorchServe answers in one profile alone, then by the one that hangs only there.

        `hello` has the id of the session of `command`: another id would hold a place in TorchServe's sequence batch until it
        is idle for long enough. It uses a connection of its own, which TorchServe drops if it has no answer.
        """
        self._builder.request(command)  # too large a request is refused before anything is sent
        hello = Hello()
        with contextlib.closing(self._open_channel()) as channel:
            stub = InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]
            call = self._sequence_call(hello, timeout_s, session_id=command.session_id, stub=stub)
            try:
                answer = self._first(call, timeout_s)
            except (ServerRefused, ServerUnreachable):
                if call.responses.code() not in _NOT_SEQUENCE:
                    raise
                answer = self._unary(hello, timeout_s)
        # The call alone tells nothing: in other profiles, too, the answer can come before TorchServe's own error.
        name = parse(answer, HelloAnswer).profile
        try:
            return Profile(name)
        except ValueError:
            raise ProtocolError(f"the server has an unknown profile, {name!r}") from None

    def _unary(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        request = self._builder.request(command, raw)
        metadata = self._builder.metadata(command.session_id)
        try:
            response = self._stub.Predictions(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise error_of(error, request.ByteSize()) from None
        return bytes(response.prediction)

    def _first(self, call: GrpcCall, timeout_s: float) -> bytes:
        # The call's own deadline comes first.
        with contextlib.closing(messages(call, timeout_s + GOODBYE_S)) as answers:
            for message in answers:
                return message
        raise ProtocolError(
            "the server ended the call without an answer; check the model's profile"
        )

    def _sequence_call(
        self,
        command: Command,
        timeout_s: float,
        *,
        session_id: str | None = None,
        stub: InferenceAPIsServiceStub | None = None,
        raw: Mapping[str, bytes] | None = None,
    ) -> GrpcCall:
        session_id = session_id or command.session_id
        request = self._builder.request(command, raw, session_id or NEW_SESSION)
        # No None yet: a half-close before the last event breaks the model for all clients.
        requests: Outgoing = queue.SimpleQueue()
        requests.put(request)
        responses = (stub or self._stub).StreamPredictions2(
            iter(requests.get, None), timeout=timeout_s, metadata=self._builder.metadata(session_id)
        )
        return GrpcCall(responses, request.ByteSize(), requests)


class _GrpcPipeline:
    """The stream of one sequence; see `Pipeline`."""

    def __init__(
        self, stub: InferenceAPIsServiceStub, builder: RequestBuilder, session_id: str
    ) -> None:
        self._builder = builder
        self._session_id = session_id
        self._inbox: Inbox = queue.SimpleQueue()
        self._num_missing = 0
        requests: Outgoing = queue.SimpleQueue()
        responses = stub.StreamPredictions2(
            iter(requests.get, None), timeout=_TIMEOUT_S, metadata=builder.metadata(session_id)
        )
        self._call = GrpcCall(responses, requests=requests)
        self._reader = threading.Thread(
            target=read, args=(self._call, self._inbox), daemon=True, name="grpc-reader"
        )
        self._reader.start()

    def send(self, command: Command, raw: Mapping[str, bytes]) -> None:
        """See `Pipeline.send`."""
        self._call.requests.put(self._builder.request(command, raw, self._session_id))
        self._num_missing += 1

    def receive(self, timeout_s: float) -> bytes:
        """See `Pipeline.receive`; a stream that has broken raises the same error again."""
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s (timeout_s)") from None
        if message is None:
            message = ServerUnreachable("the server ended the stream")
        if isinstance(message, ClientError):
            self._inbox.put(message)
            raise message
        self._num_missing -= 1
        return message

    def close(self) -> None:
        """See `Pipeline.close`."""
        if not self._num_missing:
            self._call.half_close()
            self._reader.join(GOODBYE_S)
        self._call.responses.cancel()  # of no effect on a call that has ended
        self._call.half_close()
