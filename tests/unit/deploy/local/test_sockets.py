"""Bidirectional streams of the local endpoint, between a client's WebSocket and a container's."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from deploy.sagemaker.local.server import ServiceLimits
from deploy.sagemaker.local.sockets import SocketLimits
from tests.support.sagemaker import ENDPOINT
from tests.support.sagemaker_service import Service

_PATIENCE_S = 30.0
_PATH = "/invocations-bidirectional-stream"


@pytest.fixture
def service() -> Iterator[Service]:
    """A service whose streams are pinged often."""
    service = Service(ServiceLimits(sockets=SocketLimits(ping_s=0.5)))
    yield service
    service.close()


def joined(service: Service, name: str = ENDPOINT, **headers: str) -> ClientConnection:
    """Return a client's side."""
    url = f"{service.url.replace('http', 'ws')}/endpoints/{name}{_PATH}"
    return connect(url, additional_headers=headers, proxy=None)


def test_frames_pass_in_both_directions(service: Service) -> None:
    """Text as text, bytes as bytes; pings of the service are the container's alone."""
    with joined(service) as line:
        assert line.recv(_PATIENCE_S) == _PATH
        for frame in ("ä", b"\0\xff", "x" * 100_000):
            line.send(frame)
            assert line.recv(_PATIENCE_S) == frame
        assert line.recv(_PATIENCE_S) == "pinged"


def test_a_container_closes_with_its_reason(service: Service) -> None:
    """Which is the client's `ModelStreamError`."""
    with joined(service) as line:
        line.recv(_PATIENCE_S)
        line.send("close")
        with pytest.raises(ConnectionClosedError) as closed:
            line.recv(_PATIENCE_S)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "no more")


def test_headers_name_another_path_and_a_query(service: Service) -> None:
    """Of the container."""
    headers = {
        "X-Amzn-SageMaker-Model-Invocation-Path": "elsewhere",
        "X-Amzn-SageMaker-Model-Query-String": "a=1",
    }
    with joined(service, **headers) as line:
        assert line.recv(_PATIENCE_S) == "/elsewhere?a=1"


def test_a_stream_has_an_end() -> None:
    """After 30 minutes, of which this one has none."""
    service = Service(ServiceLimits(sockets=SocketLimits(total_s=0.0)))
    with contextlib.closing(service), joined(service) as line:
        assert set(line) <= {_PATH}


def test_another_request_at_the_path_is_refused(service: Service) -> None:
    """Before a container sees it."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{service.url}/endpoints/{ENDPOINT}{_PATH}")
    with refused.value as error:
        assert error.code == 400


@pytest.mark.parametrize(("name", "query", "status"), [("other", "", 400), (ENDPOINT, "no", 424)])
def test_what_opens_no_stream_is_an_error(
    service: Service, name: str, query: str, status: int
) -> None:
    """Of the service for an unknown endpoint, of the model where the container refuses."""
    headers = {"X-Amzn-SageMaker-Model-Query-String": query}
    with pytest.raises(InvalidStatus) as refused:
        joined(service, name, **headers)
    assert refused.value.response.status_code == status
