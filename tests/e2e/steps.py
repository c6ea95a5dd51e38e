"""Speaking to models with recurrent state, with nothing of ours in between: every way to send a step of a sequence."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import grpc
import httpx

from tests.e2e.speak import DEADLINE_S, HEADER
from tests.e2e.state_server import StateModels
from ts_stateful.pb.inference_pb2 import PredictionResponse, PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.serving.server import LocalServer

_STREAM_S = 240.0  # for all steps of one, in which engines may be killed

__all__ = [
    "END",
    "START",
    "WAYS",
    "Document",
    "HttpLine",
    "Line",
    "Lines",
    "PushedLine",
    "StreamLine",
    "UnaryLine",
    "number",
    "post",
    "sum_of",
    "value",
]

Document = dict[str, Any]
START = {"start": True}
END = {"end": True}


def number(value: int, **fields: Any) -> Document:
    """A step of the ledger or the counter."""
    return {"inputs": [{"name": "number", "data": [value]}], **fields}


def value(answer: Mapping[str, Any], name: str) -> list[Any]:
    """The elements of one output of a step that must have succeeded."""
    assert "error" not in answer, answer
    (found,) = [output for output in answer["outputs"] if output["name"] == name]
    elements: list[Any] = found["data"]
    return elements


def sum_of(answer: Mapping[str, Any]) -> int:
    """The output `sum`."""
    (total,) = value(answer, "sum")
    return int(total)


def post(
    server: LocalServer,
    model: str,
    document: Any = None,
    *,
    session: str | None = None,
    **options: Any,
) -> httpx.Response:
    """One request over HTTP; `content`, `files` and `headers` as httpx has them."""
    headers = dict(options.pop("headers", {}))
    if session is not None:
        headers[HEADER] = session
    if document is not None:
        options["json"] = document
    with _http() as http:
        return http.post(f"{server.http_url}/predictions/{model}", headers=headers, **options)


def _http(**options: Any) -> httpx.Client:
    # Loading the system's certificates, for nobody, would take longer than a request.
    return httpx.Client(timeout=DEADLINE_S, trust_env=False, verify=False, **options)


class Line(Protocol):
    """One client's way to one sequence."""

    session: str

    def ask(self, document: Document) -> Document:
        """Sends a document and returns what comes back, be it an error."""

    def close(self) -> None:
        """Ends the sequence, whatever has become of it, and the connection."""


class HttpLine:
    """`POST /predictions/<model>`, the sequence in the header."""

    def __init__(self, server: LocalServer, model: str, session: str) -> None:
        self.session = session
        self._url = f"{server.http_url}/predictions/{model}"
        self._http = _http(headers={HEADER: session})

    def ask(self, document: Document) -> Document:
        """See `Line`; the status of the response is that of the document."""
        response = self._http.post(self._url, json=document)
        answer: Document = response.json()
        assert response.status_code == answer.get("error", {}).get("status", 200)
        return answer

    def close(self) -> None:
        """See `Line`."""
        self.ask({"type": "close"})
        self._http.close()


class _GrpcLine:
    def __init__(self, server: LocalServer, model: str, session: str) -> None:
        self.session = session
        self._model = model
        self._channel = grpc.insecure_channel(server.grpc_url.removeprefix("grpc://"))
        self._stub = InferenceAPIsServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def request(self, data: Document | bytes, **inputs: bytes) -> PredictionsRequest:
        """A message with a document, or with a raw body."""
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        return PredictionsRequest(model_name=self._model, input={"data": body, **inputs})

    def ask(self, document: Document) -> Document:
        """See `Line`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Line`."""
        self.ask({"type": "close"})
        self._channel.close()


class UnaryLine(_GrpcLine):
    """`Predictions`, the sequence in the body: TorchServe does not hand the message's own id on."""

    def ask(self, document: Document) -> Document:
        """See `Line`."""
        return self.call({"session_id": self.session, **document})

    def call(self, data: Document | bytes, **inputs: bytes) -> Document:
        """One call with whatever."""
        return parsed(self._stub.Predictions(self.request(data, **inputs), timeout=DEADLINE_S))


class PushedLine(_GrpcLine):
    """`StreamPredictions`, as the async profile wants it."""

    def ask(self, document: Document) -> Document:
        """See `Line`."""
        request = self.request({"session_id": self.session, **document}, rpc=b"StreamPredictions")
        (answer,) = self._stub.StreamPredictions(request, timeout=DEADLINE_S)
        return parsed(answer)


class StreamLine(_GrpcLine):
    """`StreamPredictions2`: one stream for the sequence, on which several steps may be under way."""

    def __init__(self, server: LocalServer, model: str, session: str) -> None:
        super().__init__(server, model, session)
        self._requests: queue.SimpleQueue[PredictionsRequest | None] = queue.SimpleQueue()
        self._num_unanswered = 0
        self._responses: Iterator[PredictionResponse] = self._stub.StreamPredictions2(
            iter(self._requests.get, None), timeout=_STREAM_S
        )

    def send(self, data: Document | bytes, **inputs: bytes) -> None:
        """Sends one message and does not wait."""
        request = self.request(data, **inputs)
        request.sequence_id = self.session
        self._num_unanswered += 1
        self._requests.put(request)

    def receive_raw(self) -> PredictionResponse:
        """The next answer, or TorchServe's own refusal."""
        try:
            for response in self._responses:
                if response.prediction or response.status.code:  # what is empty keeps it alive
                    self._num_unanswered -= 1
                    return response
        except grpc.RpcError:
            self._num_unanswered = 0
            raise
        raise AssertionError("the stream has ended")

    def receive(self) -> Document:
        """The document in the next answer."""
        return parsed(self.receive_raw())

    def ask(self, document: Document) -> Document:
        """See `Line`."""
        self.send(document)
        return self.receive()

    def close(self) -> None:
        """See `Line`. A stream that is closed before its last answer would break the model for everybody."""
        with contextlib.suppress(grpc.RpcError):  # of a stream that was refused
            self.send({"type": "close"})
            while self._num_unanswered:
                self.receive_raw()
        self._requests.put(None)
        with contextlib.suppress(grpc.RpcError):
            for _ in self._responses:
                pass
        self._channel.close()


def parsed(response: PredictionResponse) -> Document:
    """The document of an answer; TorchServe's own refusals have none."""
    assert response.prediction, response.status
    document: Document = json.loads(response.prediction)
    return document


# How the ledger is spoken to: which model in which profile, and by what.
WAYS: dict[
    str, tuple[str, type[HttpLine] | type[UnaryLine] | type[PushedLine] | type[StreamLine]]
] = {
    "stream": ("ledger-sequence", StreamLine),
    "http": ("ledger", HttpLine),
    "unary": ("ledger", UnaryLine),
    "async": ("ledger-async", PushedLine),
}


class Lines:
    """Makes lines to the ledger; a context manager, whose end closes their sequences, whatever became of them."""

    def __init__(self, models: StateModels) -> None:
        self._models = models
        self._made: list[Line] = []

    def __call__(self, way: str, session: str | None = None) -> Line:
        """A line by one of `WAYS`, to a sequence of its own unless one is named."""
        name, kind = WAYS[way]
        return self.add(kind(self._models.server, self._models.named(name), session or new_id()))

    def stream(self, model: str = "ledger-sequence", session: str | None = None) -> StreamLine:
        """A line on which several steps may be under way."""
        line = StreamLine(self._models.server, self._models.named(model), session or new_id())
        self.add(line)
        return line

    def add(self, line: Line) -> Line:
        """Has a line closed too."""
        self._made.append(line)
        return line

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._models.gate.unlink(missing_ok=True)
        for line in self._made:
            line.close()


def new_id() -> str:
    """An id that nobody has used."""
    return f"seq_{secrets.token_hex(8)}"
