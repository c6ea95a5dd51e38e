"""The runtime API, as an unchanged boto3 uses it and as the containers see it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from deploy.sagemaker.local.server import ServiceLimits
from tests.support.fake_container import FakeContainer
from tests.support.sagemaker import ENDPOINT, parts_of, serving
from tests.support.sagemaker_service import EXPIRES, Service

SHORT = ServiceLimits(model_s=0.2)
_PATIENCE_S = 30.0


@pytest.fixture
def start() -> Iterator[Callable[[ServiceLimits], Service]]:
    """Return a function that starts services."""
    with contextlib.ExitStack() as stack:

        def start(limits: ServiceLimits) -> Service:
            service = Service(limits)
            stack.callback(service.close)
            return service

        yield start


@pytest.fixture
def service(start: Callable[[ServiceLimits], Service]) -> Service:
    """Start a service with SageMaker's limits."""
    return start(ServiceLimits())


def _refused(call: Callable[[], Any], code: str, status: int) -> dict[str, Any]:
    with pytest.raises(ClientError) as caught:
        call()
    response: dict[str, Any] = caught.value.response
    assert response["Error"]["Code"] == code
    assert response["ResponseMetadata"]["HTTPStatusCode"] == status
    return response


def test_a_session_is_opened_used_and_closed(service: Service) -> None:
    """New sessions spread over the instances, stay where they are, and are unknown once they are closed."""
    opened = service.invoke("NEW_SESSION", {"opens": f"first{EXPIRES}", "says": "hello"})
    assert opened["NewSessionId"] == f"first{EXPIRES}"
    assert opened["Body"].read() == b"hello"
    assert opened["InvokedProductionVariant"] == "AllTraffic"
    assert opened["ResponseMetadata"]["RequestId"]
    assert service.open("second") == 1
    for name, number in (("first", 0), ("second", 1), ("second", 1), ("first", 0)):
        answer = service.invoke(name)
        assert service.containers[number].seen[-1]["x-amzn-sagemaker-session-id"] == name
        assert "NewSessionId" not in answer
    assert [len(one.seen) for one in service.containers] == [3, 3]
    assert service.invoke("first", {"closes": "first"})["ClosedSessionId"] == "first"
    response = _refused(lambda: service.invoke("first"), "ValidationError", 400)
    assert response["Error"]["Message"] == "Session first not found."
    assert [len(one.seen) for one in service.containers] == [4, 3]


def test_a_session_ends_at_expires(service: Service) -> None:
    """After `Expires` the id is unknown, also to streams."""
    service.clock.now += 59
    service.open("abc")
    service.invoke("abc")
    service.clock.now += 1
    for call in (service.invoke, service.stream):
        _refused(partial(call, "abc"), "ValidationError", 400)


def test_a_bare_id_of_the_container_opens_no_session(service: Service) -> None:
    """A container that repeats the session's id, without `Expires`, has opened nothing."""
    assert "NewSessionId" not in service.invoke("NEW_SESSION", {"opens": "abc"})
    _refused(lambda: service.invoke("abc"), "ValidationError", 400)


def test_the_container_sees_what_the_service_passes(service: Service) -> None:
    """Content type, accept, custom attributes and session, and no header of boto3's or the router's own."""
    service.invoke(
        "NEW_SESSION",
        b"\x00raw",
        ContentType="application/x-thing",
        Accept="text/plain",
        CustomAttributes="trace=1",
        TargetVariant="AllTraffic",
    )
    service.open("abc")
    service.stream("abc", {"parts": []}, ContentType="application/json", Accept="text/event-stream")
    seen, _, streamed = service.containers[0].seen
    assert service.containers[0].bodies[0] == b"\x00raw"
    expected = {
        "content-type": "application/x-thing",
        "accept": "text/plain",
        "x-amzn-sagemaker-custom-attributes": "trace=1",
        "x-amzn-sagemaker-session-id": "NEW_SESSION",
        "content-length": "4",
    }
    assert {name: value for name, value in seen.items() if name != "host"} == expected
    assert streamed["accept"] == "text/event-stream"
    assert streamed["x-amzn-sagemaker-session-id"] == "abc"


def test_custom_attributes_come_back(service: Service) -> None:
    """The container sets them, and the type of its answer."""
    answer = service.invoke()
    assert (answer["CustomAttributes"], answer["ContentType"]) == ("done", "application/json")
    answer = service.stream(body={"parts": []})
    assert (answer["CustomAttributes"], answer["ContentType"]) == ("done", "text/event-stream")


def test_a_stream_arrives_part_by_part(service: Service) -> None:
    """Every part is there before the container goes on."""
    service.open("abc")
    answer = service.stream("abc", {"parts": ["one", "two"], "silent": True})
    events, came = iter(answer["Body"]), b""
    while came != b"onetwo":
        came += next(events)["PayloadPart"]["Bytes"]
    service.containers[0].resume()
    assert list(events) == []


def test_an_error_of_the_container_is_a_model_error(service: Service) -> None:
    """It is 424, with the answer of the container and the address of its log."""
    for status, at_fault in ((410, "client"), (507, "server"), (302, "server")):
        body = {"status": status, "says": '{"error": {}}'}
        for call in (service.invoke, service.stream):
            response = _refused(partial(call, body=body), "ModelError", 424)
            assert response["OriginalStatusCode"] == status
            assert response["OriginalMessage"] == '{"error": {}}'
            assert response["LogStreamArn"].endswith(
                f":log-group:/aws/sagemaker/Endpoints/{ENDPOINT}"
            )
            start = f'Received {at_fault} error ({status}) from primary with message "'
            assert response["Error"]["Message"].startswith(start)


def test_an_error_opens_no_session(service: Service) -> None:
    """Session headers of a failed answer are not learned."""
    body = {"status": 500, "opens": f"abc{EXPIRES}"}
    _refused(lambda: service.invoke("NEW_SESSION", body), "ModelError", 424)
    _refused(lambda: service.invoke("abc"), "ValidationError", 400)


def test_a_model_that_is_too_slow_is_given_up(start: Callable[[ServiceLimits], Service]) -> None:
    """After the time limit the service answers instead of the container, with status 0."""
    service = start(SHORT)
    for call in (service.invoke, service.stream):
        response = _refused(partial(call, body={"waits": True}), "ModelError", 424)
        assert response["OriginalStatusCode"] == 0
        assert "timed out" in response["OriginalMessage"]


def test_a_stream_that_does_not_end_fails_as_an_event(
    start: Callable[[ServiceLimits], Service],
) -> None:
    """The parts before stay, and the reason follows them."""
    service = start(ServiceLimits(stream_s=3.0))
    answer = service.stream(body={"parts": ["one"], "silent": True})
    events: list[dict[str, Any]] = []
    with pytest.raises(EventStreamError, match="timed out") as caught:
        events.extend(answer["Body"])
    assert caught.value.response["Error"]["Code"] == "ModelStreamError"
    assert parts_of(events) == b"one"


def test_a_stream_that_breaks_fails_as_an_event(service: Service) -> None:
    """A container that goes away in the middle does not end the stream as if nothing were wrong."""
    answer = service.stream(body={"parts": ["one"], "breaks": True})
    events: list[dict[str, Any]] = []
    with pytest.raises(EventStreamError, match="process exited"):
        events.extend(answer["Body"])
    assert parts_of(events) == b"one"


def test_a_request_of_a_disconnected_client_is_cancelled(service: Service) -> None:
    """Its request does not stay in flight."""
    answer = service.stream(body={"parts": ["one"], "silent": True})
    next(iter(answer["Body"]))
    (busy,) = [instance for instance in service.router.instances if instance.num_requests]
    answer["Body"].close()
    service.boto.close()
    _wait_for(lambda: not busy.num_requests)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"EndpointName": "other"}, "Endpoint other of account"),
        ({"SessionId": "a_b"}, "at 'sessionId' failed to satisfy constraint"),
        ({"SessionId": "a" * 257}, "at 'sessionId' failed to satisfy constraint"),
        ({"SessionId": "nobody"}, "Session nobody not found"),
        ({"TargetVariant": "other"}, "Variant other not found"),
        ({"TargetModel": "other"}, "does not support targetModel"),
        ({"InferenceComponentName": "other"}, "does not support inferenceComponentName"),
        ({"CustomAttributes": "a" * 1025}, "at 'customAttributes'"),
    ],
)
def test_a_wrong_request_is_refused(
    service: Service, options: dict[str, Any], message: str
) -> None:
    """The error is a ValidationError, and no container sees the request."""
    response = _refused(lambda: service.invoke(**options), "ValidationError", 400)
    assert message in response["Error"]["Message"]
    assert not any(one.seen for one in service.containers)


def test_a_stream_opens_no_session(service: Service) -> None:
    """`NEW_SESSION` is for InvokeEndpoint alone."""
    response = _refused(lambda: service.stream("NEW_SESSION"), "ValidationError", 400)
    assert "Value 'NEW_SESSION' at 'sessionId'" in response["Error"]["Message"]


def test_the_limit_of_a_body_is_to_the_byte(service: Service) -> None:
    """6,291,456 bytes arrive, one more is 413 under no name, as in front of the service."""
    service.invoke(body=bytes(6_291_456))
    assert len(service.containers[0].bodies[0]) == 6_291_456
    response = _refused(lambda: service.invoke(body=bytes(6_291_457)), "413", 413)
    assert response["Error"]["Message"] == "HTTP content length exceeded 6291456 bytes."
    assert [len(one.seen) for one in service.containers] == [1, 0]


def _ping(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/ping") as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_an_instance_that_is_gone_is_left_out() -> None:
    """A connection that is refused takes an instance out of service; its sessions and new ones go to the other."""
    service = Service(ServiceLimits())
    with contextlib.closing(service):
        with serving(FakeContainer().app) as (gone,):
            pass
        first, second = service.router.instances
        service.open("abc")
        first.url = gone
        service.invoke("abc")
        assert service.screen.lines == [f"{gone} leaves service"]
        assert service.containers[1].seen[-1]["x-amzn-sagemaker-session-id"] == "abc"
        status, document = _ping(service.url)
        assert (status, document["status"]) == (200, "Healthy")
        assert document["instances"] == [
            {"url": gone, "in_service": False, "sessions": 0},
            {"url": second.url, "in_service": True, "sessions": 1},
        ]
        second.url = gone
        _refused(lambda: service.invoke("abc"), "ServiceUnavailable", 503)
        assert _ping(service.url)[0] == 503


def test_an_instance_that_is_not_healthy_gets_nothing(
    start: Callable[[ServiceLimits], Service],
) -> None:
    """One whose ping fails three times in a row leaves service, and returns when it answers."""
    service = start(ServiceLimits(ping_s=0.01))
    first, second = service.containers
    first.sick_pings = 1_000_000
    _wait_for(lambda: len(service.screen.lines) == 1)
    assert service.open("abc") == 1
    first.sick_pings = 0
    _wait_for(lambda: len(service.screen.lines) == 2)
    assert service.open("def") == 0
    assert [line.split()[1:] for line in service.screen.lines] == [
        ["leaves", "service"],
        ["returns", "to", "service"],
    ]
    assert len(second.seen) == 1


def test_instances_leave_and_return_while_standard_output_is_closed(
    start: Callable[[ServiceLimits], Service],
) -> None:
    """Requests go to the other instance, and health checks continue."""
    service = start(ServiceLimits(ping_s=0.01))
    service.screen.is_broken = True
    service.containers[0].sick_pings = 1_000_000
    _wait_for(lambda: len(service.screen.lines) == 1)
    service.containers[0].sick_pings = 0
    _wait_for(lambda: len(service.screen.lines) == 2)
    assert service.open("abc") == 0
    with serving(FakeContainer().app) as (gone,):
        pass
    service.router.instances[0].url = gone
    service.invoke("abc")
    assert len(service.containers[1].seen) == 1


def test_a_ping_that_is_missed_moves_nobody(start: Callable[[ServiceLimits], Service]) -> None:
    """Two in a row, as of a machine that is busy, change nothing."""
    service = start(ServiceLimits(ping_s=0.01))
    for _ in range(3):
        service.containers[0].sick_pings = 2
        _wait_for(lambda: service.containers[0].sick_pings < -1)
    assert service.screen.lines == []


def _wait_for(happened: Callable[[], bool]) -> None:
    pause, deadline = threading.Event(), time.monotonic() + _PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        pause.wait(0.01)
