"""The gRPC calls that HAProxy passes on: those that the nodes' profile serves."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import grpc
import pytest

from tests.e2e.speak import Speaker, eventually
from tests.support.fake_servers import grpc_server, http_server
from tests.support.fake_sessions import FakeSessions
from tests.support.haproxy import NO_HAPROXY, haproxy, haproxy_binary
from ts_stateful.client import connect
from ts_stateful.pb.inference_pb2 import PredictionsRequest, TorchServeHealthResponse
from ts_stateful.serving.ports import Ports

SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
OTHER = "/org.pytorch.serve.grpc.openinference.GRPCInferenceService/ModelInfer"
UNARY = (f"{SERVICE}Predictions", f"{SERVICE}StreamPredictions")
PUSHED = f"{SERVICE}StreamPredictions2"
DEADLINE_S = 60.0


def status_of(channel: grpc.Channel, call: str) -> grpc.StatusCode:
    """Call with one message and half-close; return the status, which a deadline bounds."""
    request = Speaker.message({"type": "hello"}, session="innocent")
    method = channel.stream_stream(
        call, PredictionsRequest.SerializeToString, TorchServeHealthResponse.FromString
    )
    responses = method(iter([request]), timeout=DEADLINE_S)
    with contextlib.suppress(grpc.RpcError):
        list(responses)
    code: grpc.StatusCode = responses.code()
    return code


def is_refused(channel: grpc.Channel, call: str) -> bool:
    """Return True if the call is one that nobody serves."""
    return status_of(channel, call) is grpc.StatusCode.UNIMPLEMENTED


def num_reached(fake: FakeSessions) -> int:
    """The calls that a node got; HAProxy's checks, over HTTP, do not count."""
    return sum(headers.get("user-agent", "").startswith("grpc-") for headers in fake.headers)


@pytest.mark.parametrize(
    ("profile", "served", "refused"),
    [
        ("continuous", UNARY, (PUSHED, OTHER)),
        ("async", UNARY, (PUSHED, OTHER)),
        ("sequence", (PUSHED,), (*UNARY, OTHER)),
        ("any", (*UNARY, PUSHED), (OTHER,)),
    ],
)
def test_haproxy_refuses_calls_that_the_profile_does_not_serve(
    tmp_path: Path, profile: str, served: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    """They get UNIMPLEMENTED and reach no node. The client library finds out the profile all the same."""
    binary = haproxy_binary()
    if binary is None:
        pytest.skip(NO_HAPROXY)
    fake = FakeSessions("sequence" if profile == "any" else profile)
    with http_server(fake) as http, grpc_server(fake) as port:
        nodes = [Ports(http=http, grpc=port)] * 2
        with haproxy(
            binary, nodes, tmp_path / "log", TS_FRONT="torchserve", TS_PROFILE=profile
        ) as proxy:
            with connect(proxy.grpc_url) as connection:
                assert connection.hello().profile == fake.profile
            with grpc.insecure_channel(proxy.grpc_url.removeprefix("grpc://")) as channel:
                for call in refused:
                    reached = num_reached(fake)
                    # Another status where a busy machine takes more than 100 ms for the end of the request.
                    eventually(partial(is_refused, channel, call))
                    assert num_reached(fake) == reached
                for call in served:
                    reached = num_reached(fake)
                    status_of(channel, call)
                    assert num_reached(fake) == reached + 1
