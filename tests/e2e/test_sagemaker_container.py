"""The containers that deploy/sagemaker builds, as SageMaker runs them: the entrypoint on an unpacked model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.sagemaker_container import FRONTS, Container, image_environment, missing
from tests.e2e.server import pack
from tests.e2e.speak import DEADLINE_S, SCENE_BASE64, error_of, eventually

SESSION = "X-Amzn-SageMaker-Session-Id"
CLOSED = "X-Amzn-SageMaker-Closed-Session-Id"
OPENED = re.compile(r"([a-zA-Z0-9](?:-*[a-zA-Z0-9])*); Expires=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@pytest.fixture(scope="module", params=FRONTS)
def container(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """One that is healthy, with each front."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("ml")
    pack(base, "--name", "model", "--format", "no-archive")
    with Container(base, request.param, TS_STATEFUL_ENDPOINT_NAME="demo") as container:
        yield container


@pytest.fixture
def http(container: Container) -> Iterator[httpx.Client]:
    """Plain HTTP to it."""
    with httpx.Client(base_url=container.url, timeout=DEADLINE_S, trust_env=False) as client:
        yield client


def invoke(http: httpx.Client, document: Any, session: str = "NEW_SESSION") -> httpx.Response:
    """What SageMaker makes of InvokeEndpoint."""
    return http.post("/invocations", json=document, headers={SESSION: session})


def open_session(http: httpx.Client) -> str:
    """Opens one on the demo scene; returns its id."""
    opened = invoke(http, {"type": "open", "images": [{"base64": SCENE_BASE64}]})
    assert opened.status_code == 200, opened.text
    match = OPENED.fullmatch(opened.headers[SESSION])
    assert match is not None, opened.headers[SESSION]
    return match.group(1)


def test_a_session_opens_remembers_streams_and_closes(http: httpx.Client) -> None:
    """Through /invocations and the headers of SageMaker's sticky sessions alone."""
    session = open_session(http)
    assert invoke(http, {"prompt": "What color is the circle?"}, session).json()["text"] == "red"
    streamed = invoke(http, {"prompt": "And the square?", "stream": True}, session)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = re.findall(r"^data: (.*)$", streamed.text, flags=re.MULTILINE)
    assert "".join(json.loads(event)["text"] for event in events) == "blue"
    closed = invoke(http, {"type": "close"}, session)
    assert closed.headers[CLOSED] == session
    after = invoke(http, {"prompt": "And the triangle?"}, session)
    assert error_of(after.json()) == ("session_closed", 410)


def test_a_request_may_be_as_large_as_the_settings_of_the_repository_say(
    http: httpx.Client,
) -> None:
    """They hold in the container, which comes with settings of its own: there TorchServe's limit is 6.5 MB."""
    body = {"type": "open", "images": [{"base64": "AAAA" * 1_750_000}]}
    answer = http.post("/invocations", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "media_invalid"


def test_cloudwatch_finds_metrics_in_the_log(container: Container) -> None:
    """Lines of JSON with nothing before or behind them, one in a minute; everything else that is logged is not for it."""
    eventually(lambda: '{"_aws"' in container.log_text())
    lines = [line for line in container.log_text().splitlines() if '"_aws"' in line]
    (head,) = json.loads(lines[0])["_aws"]["CloudWatchMetrics"]
    assert (
        head["Namespace"] == image_environment(container.front)["TS_STATEFUL_CLOUDWATCH_NAMESPACE"]
    )
    minutes = [json.loads(line)["_aws"]["Timestamp"] // 60_000 for line in lines]
    assert len(set(minutes)) == len(minutes)
    assert {json.loads(line)["EndpointName"] for line in lines} == {"demo"}


def test_it_ends_when_it_is_told_to(container: Container, http: httpx.Client) -> None:
    """Behind the end of the turn that runs, before it would be killed; the last test, since it leaves no container."""
    session = open_session(http)
    long = {"prompt": "And the square?", "stream": True, "max_new_tokens": 400, "ignore_eos": True}
    with (
        ThreadPoolExecutor(1) as pool,
        http.stream("POST", "/invocations", json=long, headers={SESSION: session}) as response,
    ):
        lines = filter(None, response.iter_lines())
        next(lines)
        stopping = pool.submit(container.stop)
        *_, last = lines
        stopping.result()
    assert json.loads(last.removeprefix("data: "))["finish_reason"] == "length"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{container.url}/ping", trust_env=False)
