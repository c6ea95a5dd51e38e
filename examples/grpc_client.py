"""TorchServe's gRPC interface on the command line, one command per call. For programs there is `ts_stateful.client`."""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from ts_stateful.pb.inference_pb2 import PredictionResponse, PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.pb.management_pb2 import RegisterModelRequest, UnregisterModelRequest
from ts_stateful.pb.management_pb2_grpc import ManagementAPIsServiceStub

SAMPLES = Path(__file__).resolve().parent / "counter"
_START = {"ts_request_sequence_start": b"true"}
_END = {"ts_request_sequence_end": b"true"}
# The marker of a call whose answer has several messages.
_PUSHED = {"rpc": b"StreamPredictions"}
_GOODBYE_S = 2.0  # for the server to end a stream after its last answer

_EPILOG = """\
which call a model answers is a matter of its profile (the batching in its model-config.yaml):
  sequenceBatching      infer_stream2; the others never get an answer there
  continuousBatching    infer; infer_stream gets one message
  asyncCommunication    infer_stream, and infer for the whole answer

example, with `make serve EXAMPLE=counter` in another terminal:
  python examples/grpc_client.py infer_stream2 counter seq_0 sample1.txt,sample2.txt,sample3.txt
"""
_NOT_SEQUENCE = (
    "this call needs a model with sequenceBatching: use `infer` for this one, or serve"
    " it in the sequence profile"
)
_NO_PLACE = (
    "every place for a sequence may be taken (maxNumSequence): TorchServe frees one when it was idle"
    " for sequenceMaxIdleMSec"
)
_NO_UNARY_ANSWER = "with sequenceBatching TorchServe never answers this call, use `infer_stream2`; else raise --timeout"
_NO_MODEL_API = (
    "set `enable_model_api=true` in config.properties to allow this; every client of the management"
    " port can then run code"
)


class CallFailed(Exception):
    """A call without a good answer; the message is for the user."""


def infer(options: argparse.Namespace) -> None:
    """Call `Predictions`: one message, one answer."""
    request = _request(options, options.file)
    with _inference(options) as stub, _explained(options, _NO_UNARY_ANSWER):
        _show(stub.Predictions(request, timeout=options.timeout))


def infer_stream(options: argparse.Namespace) -> None:
    """Call `StreamPredictions`: one message, an answer in parts."""
    request = _request(options, options.file, _PUSHED)
    with _inference(options) as stub, _explained(options, _NO_UNARY_ANSWER):
        for response in stub.StreamPredictions(request, timeout=options.timeout):
            _show(response)


def infer_stream2(options: argparse.Namespace) -> None:
    """Call `StreamPredictions2`: the steps of one sequence, each sent after the answer to the one before."""
    requests = [
        _request(options, path, sequence_id=options.sequence_id)
        for path in options.files.split(",")
    ]
    requests[0].input.update(_START)
    requests[-1].input.update(_END)
    waiting: queue.SimpleQueue[PredictionsRequest | None] = queue.SimpleQueue()
    with _inference(options) as stub, _explained(options, _NO_PLACE):
        responses = stub.StreamPredictions2(iter(waiting.get, None), timeout=options.timeout)
        try:
            for request in requests:
                waiting.put(request)
                _show(_next_answer(responses))
        except BaseException:
            # Never close this side before an answer: TorchServe would stop serving the model to everybody.
            responses.cancel()
            raise
        finally:
            waiting.put(None)
        ended = threading.Event()
        if responses.add_callback(ended.set):
            ended.wait(_GOODBYE_S)


def register(options: argparse.Namespace) -> None:
    """Call `RegisterModel`: each archive is a version of the model."""
    for url in options.urls or [f"{options.model}.mar"]:
        request = RegisterModelRequest(
            url=url, model_name=options.model, initial_workers=1, synchronous=True
        )
        with _management(options) as stub, _explained(options, "loading a model takes time"):
            print(stub.RegisterModel(request, timeout=options.timeout).msg.strip())


def unregister(options: argparse.Namespace) -> None:
    """Call `UnregisterModel`."""
    request = UnregisterModelRequest(model_name=options.model, model_version=options.version)
    with _management(options) as stub, _explained(options, "workers take time to end"):
        print(stub.UnregisterModel(request, timeout=options.timeout).msg.strip())


def _request(
    options: argparse.Namespace,
    path: str,
    others: dict[str, bytes] | None = None,
    sequence_id: str | None = None,
) -> PredictionsRequest:
    return PredictionsRequest(
        model_name=options.model,
        input={"data": _read(path.strip()), **(others or {})},
        sequence_id=sequence_id,
    )


def _read(path: str) -> bytes:
    for candidate in (Path(path), SAMPLES / path):
        if candidate.is_file():
            return candidate.read_bytes()
    raise CallFailed(f"no such file: {path}, neither here nor in {SAMPLES}")


def _next_answer(responses: Iterator[PredictionResponse]) -> PredictionResponse:
    for response in responses:
        if response.prediction or response.status.code:  # an empty one keeps the stream alive
            return response
    raise CallFailed("the server ended the stream without an answer")


def _show(response: PredictionResponse) -> None:
    """Print an answer.

    Raises:
        CallFailed: the answer is an error of TorchServe (a status) or of the model (a document).
    """
    if response.status.code:
        message = response.status.message.partition("\n")[0]
        hint = f"\n{_NO_PLACE}" if "no worker" in message else ""
        raise CallFailed(f"TorchServe refuses: {message}{hint}")
    text = response.prediction.decode(errors="replace")
    error = _error_in(text)
    if error is not None:
        raise CallFailed(f"{error.get('code')} ({error.get('status')}): {error.get('message')}")
    print(text, flush=True)


def _error_in(text: str) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else None


@contextmanager
def _channel(options: argparse.Namespace, port: int) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"{options.host}:{port}") as channel:
        yield channel


@contextmanager
def _inference(options: argparse.Namespace) -> Iterator[InferenceAPIsServiceStub]:
    with _channel(options, options.port) as channel:
        yield InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]


@contextmanager
def _management(options: argparse.Namespace) -> Iterator[ManagementAPIsServiceStub]:
    with _channel(options, options.management_port) as channel:
        yield ManagementAPIsServiceStub(channel)  # type: ignore[no-untyped-call]


@contextmanager
def _explained(options: argparse.Namespace, late: str) -> Iterator[None]:
    """Turn gRPC's errors into advice; `late` explains a missing answer."""
    try:
        yield
    except grpc.RpcError as error:
        code = error.code()
        details = str(error.details() or "").partition("\n")[0] or "TorchServe gives no reason"
        # For a model of another profile TorchServe fails, and sometimes drops the connection before its error.
        failed = code is grpc.StatusCode.UNKNOWN or "GOAWAY" in details
        if failed and options.command is infer_stream2:
            raise CallFailed(_NOT_SEQUENCE) from None
        if code is grpc.StatusCode.UNAVAILABLE:
            raise CallFailed(
                f"no server answers at {options.host}: is TorchServe running? {details}"
            ) from None
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise CallFailed(f"no answer within {options.timeout:g} s: {late}") from None
        if options.command in (register, unregister) and "API" in details:
            details = f"{details}\n{_NO_MODEL_API}"
        raise CallFailed(f"{code.name}: {details}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Call TorchServe over gRPC.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument(
        "--port", type=int, default=7070, help="of inference (default: %(default)s)"
    )
    parser.add_argument(
        "--management-port", type=int, default=7071, help="of management (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for a whole call; TorchServe lets some calls hang for ever (default: %(default)g)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], None], text: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.set_defaults(command=run)
        command.add_argument(
            "model", metavar="MODEL", help="the name under which the model is served"
        )
        return command

    _add_inference(add)
    _add_management(add)
    return parser


def _add_inference(add: Callable[..., argparse.ArgumentParser]) -> None:
    file = "what to send: a path, from here or else from examples/counter"
    for name, run, text in (
        ("infer", infer, "send one request and print its answer"),
        ("infer_stream", infer_stream, "send one request and print its answer part by part"),
    ):
        add(name, run, text).add_argument("file", metavar="FILE", help=file)
    stream = add(
        "infer_stream2",
        infer_stream2,
        "send the steps of a sequence, from its beginning to its end, and print the answer to each",
    )
    stream.add_argument(
        "sequence_id",
        metavar="SEQUENCE_ID",
        help="any name: steps of the same one share their state",
    )
    stream.add_argument("files", metavar="FILE,FILE,...", help=f"{file}; a step each")


def _add_management(add: Callable[..., argparse.ArgumentParser]) -> None:
    command = add("register", register, "load a model; TorchServe's model API has to be enabled")
    command.add_argument(
        "urls",
        metavar="URL",
        nargs="*",
        help="an archive each, of one version of the model: its name in the model store, or a URL that"
        " TorchServe is allowed to read (default: MODEL.mar)",
    )
    command = add("unregister", unregister, "unload a model")
    command.add_argument(
        "--version", default="", help="default: the version that is served by default"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 1 if it got no answer, or an error."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except CallFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
