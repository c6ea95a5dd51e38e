"""Real gRPC and HTTP servers of `FakeSessions` on loopback that behave as TorchServe does in each profile."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from tests.support.fake_sessions import FakeSessions, Fault
from ts_stateful.pb.inference_pb2 import PredictionResponse, PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import (
    InferenceAPIsServiceServicer,
    add_InferenceAPIsServiceServicer_to_server,
)
from ts_stateful.protocol.errors import StatefulError

__all__ = ["grpc_server", "http_server"]

_PATIENCE_S = 30.0
_CANCEL_S = 5.0
_OPTIONS = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 20_000_000)]


class _Broken(Exception):
    """A connection that has to break now."""


class _Silent(Exception):
    """A connection that has to stay silent until the client closes it."""


class _Raw(Exception):
    """An answer of another program."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault


def _documents(fake: FakeSessions, request: dict[str, Any], *, pull: bool) -> Iterator[bytes]:
    """Yield the documents of an answer, with the fault of the request."""
    fault = fake.fault_for(request["type"])
    count = 0
    if fault is not None and fault.status is not None:
        raise _Raw(fault)
    try:
        if fault is not None and fault.error is not None and not fault.events:
            raise fault.error
        if fault is not None and not (fault.events or fault.lost):
            _stop(fault)
        for document in fake.answers(request, pull=pull):
            if fault is not None and count == fault.events:
                if fault.error is not None:
                    raise fault.error
                _stop(fault)
                return
            yield json.dumps(document, ensure_ascii=count % 2 == 0).encode()
            count += 1
    except StatefulError as error:
        yield json.dumps(error.to_body()).encode()


def _stop(fault: Fault) -> None:
    if fault.stalls:
        raise _Silent
    if not fault.ends:
        raise _Broken


class _Servicer(InferenceAPIsServiceServicer):
    def __init__(self, fake: FakeSessions) -> None:
        self._fake = fake

    def Predictions(self, request: PredictionsRequest, context: Any) -> PredictionResponse:
        if self._fake.profile == "sequence":
            self._fake.violations.append("Predictions hangs in the sequence profile")
        if "rpc" in request.input:
            self._fake.violations.append("Predictions with the marker of StreamPredictions")
        for message in self._messages(request, context, pull=self._fake.profile == "continuous"):
            return message
        return PredictionResponse()

    def StreamPredictions(
        self, request: PredictionsRequest, context: Any
    ) -> Iterator[PredictionResponse]:
        if self._fake.profile != "async" or request.input["rpc"] != b"StreamPredictions":
            self._fake.violations.append("StreamPredictions kills or hangs the worker")
        yield from self._messages(request, context, pull=False)

    def StreamPredictions2(
        self, requests: Iterator[PredictionsRequest], context: Any
    ) -> Iterator[PredictionResponse]:
        if self._fake.profile != "sequence":
            if self._fake.overtakes:
                yield from self._messages(next(requests), context, pull=False)
            yield PredictionResponse()
            context.abort(grpc.StatusCode.UNKNOWN, "")
        request = next(requests, None)
        if request is None:  # larger than the server takes
            return
        if not request.sequence_id:
            self._fake.violations.append("a sequence without an id")
        half_closed, cancelled = threading.Event(), threading.Event()
        context.add_callback(cancelled.set)

        def watch() -> None:
            with contextlib.suppress(grpc.RpcError):
                for _ in requests:
                    self._fake.violations.append("a second request before the answer to the first")
            half_closed.set()

        threading.Thread(target=watch, daemon=True).start()
        last: dict[str, Any] = {}
        for message in self._messages(request, context, pull=False):
            # A cancelled call, which is always allowed, first looks half-closed to gRPC.
            if half_closed.is_set() and not cancelled.wait(_CANCEL_S):
                self._fake.violations.append("half-closed before the last event")
            last = json.loads(message.prediction)
            yield message
        if last.keys() - {"text"}:  # else the call ends too early
            half_closed.wait(_PATIENCE_S)

    def _messages(
        self, request: PredictionsRequest, context: Any, *, pull: bool
    ) -> Iterator[PredictionResponse]:
        self._fake.headers.append(dict(context.invocation_metadata()))
        if request.model_name != "chat" or self._fake.is_unregistered():
            name = "org.pytorch.serve.archive.model.ModelNotFoundException"
            context.abort(
                grpc.StatusCode.INTERNAL, f"Model not found: {request.model_name}\n{name}"
            )
        header = request.sequence_id if self._fake.profile == "sequence" else None
        try:
            document = self._fake.read(request.input["data"], header)
            for body in _documents(self._fake, document, pull=pull):
                yield PredictionResponse(prediction=body)
        except StatefulError as error:
            yield PredictionResponse(prediction=json.dumps(error.to_body()).encode())
        except _Broken:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server is going away")
        except _Raw as raw:
            context.abort(grpc.StatusCode.INTERNAL, raw.fault.body.decode())
        except _Silent:
            gone = threading.Event()
            if context.add_callback(gone.set):
                gone.wait(_PATIENCE_S)


@contextlib.contextmanager
def grpc_server(
    fake: FakeSessions, credentials: grpc.ServerCredentials | None = None
) -> Iterator[int]:
    """Serve over gRPC as the profile of `fake` does; yield the port."""
    server = grpc.server(ThreadPoolExecutor(8), options=_OPTIONS)
    add_InferenceAPIsServiceServicer_to_server(_Servicer(fake), server)  # type: ignore[no-untyped-call]
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait(_PATIENCE_S)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S
    disable_nagle_algorithm = True
    fake: FakeSessions
    id_header = "ts_request_sequence_id"
    end_header = "ts_request_sequence_end"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""

    def handle(self) -> None:
        """Serve a connection, which its client may break off."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_POST(self) -> None:
        self.fake.headers.append({name.lower(): value for name, value in self.headers.items()})
        body = self.rfile.read(int(self.headers["Content-Length"]))
        known = self.path.endswith(("/predictions/chat", "/invocations"))
        if not known or self.fake.is_unregistered():
            missing = {"code": 404, "type": "ModelNotFoundException", "message": "Model not found"}
            self._whole(json.dumps(missing).encode(), 404)
            return
        try:
            document = self.fake.read(body, self.headers.get(self.id_header))
            documents = _documents(self.fake, document, pull=False)
            if document.get("stream"):
                self._events(documents)
            else:
                self._whole(next(documents), 200)
        except StatefulError as error:
            self._whole(json.dumps(error.to_body()).encode(), error.status)
        except _Raw as raw:
            self._whole(raw.fault.body, raw.fault.status or 200, "text/html")
        except _Broken:
            self.close_connection = True
        except _Silent:
            self.rfile.read(1)  # until the client closes it
            self.close_connection = True
        except ConnectionError:
            self.close_connection = True

    def _events(self, documents: Iterator[bytes]) -> None:
        first = next(documents, None)
        if first is not None and b'{"error"' in first:
            self._whole(first, 200)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        event = first
        while event is not None:
            data = b"data: " + event + b"\n\n"
            for part in (data[:9], data[9:]):  # chunks are not events
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
            event = next(documents, None)
        self.wfile.write(b"0\r\n\r\n")

    def _whole(self, body: bytes, status: int, media_type: str = "application/json") -> None:
        document = json.loads(body) if media_type == "application/json" else {}
        if "error" in document:
            status = document["error"]["status"]
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        if "expires_at" in document and "usage" in document:  # opened, by `open` or `fork`
            expires = f"{document['session_id']}; Expires={document['expires_at']}"
            self.send_header(self.id_header, expires)
        elif "closed" in document:
            self.send_header(self.end_header, document["session_id"])
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def http_server(
    fake: FakeSessions, tls: Any = None, *, headers: tuple[str, str] | None = None
) -> Iterator[int]:
    """Serve over HTTP; yield the port. `headers` are other names of the session headers."""
    names = {} if headers is None else dict(zip(("id_header", "end_header"), headers, strict=True))
    handler = type("Handler", (_Handler,), {"fake": fake, **names})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_PATIENCE_S)
