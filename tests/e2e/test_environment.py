"""A server that is deployed with other servers' environment variables, and SageMaker's header named by one alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.e2e.server import log_path, profile_server
from tests.e2e.speak import Speaker
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer
from ts_stateful.torchserve.java import java_environment

NAME, CLOSED = "X-Amzn-SageMaker-Session-Id", "X-Amzn-SageMaker-Closed-Session-Id"
TTL = timedelta(minutes=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its sessions are kept."""
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The continuous profile, with nothing changed but the environment, and on the packaged Java."""
    environ = {
        **java_environment({"PATH": ""}),
        "TS_REQUEST_SEQUENCE_ID": NAME,
        "SES_TTL_MIN": "5",
        "OPTION_SESSIONS_EXPIRATION": "300",
        "OPTION_SESSIONS_PATH": str(folder),
    }
    place = tmp_path_factory.mktemp("environment")
    with profile_server(Profile.CONTINUOUS, place, name="environment", environ=environ) as server:
        yield server


@pytest.fixture
def speaker(server: LocalServer, speak: Callable[[LocalServer], Speaker]) -> Speaker:
    """Plain HTTP to that server."""
    return speak(server)


@pytest.mark.parametrize("header", [{}, {NAME: ""}, {NAME: "NEW_SESSION"}])
def test_a_session_is_opened_used_and_closed_under_sagemakers_headers(
    speaker: Speaker, header: dict[str, str]
) -> None:
    """Its end is where SES_TTL_MIN puts it, to the second."""
    before = datetime.now(timezone.utc).replace(microsecond=0)
    opened = speaker.post({"requestType": "NEW_SESSION"}, headers=header)
    after = datetime.now(timezone.utc)
    session, _, expires = opened.headers[NAME].partition("; Expires=")
    until = datetime.strptime(expires, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert before + TTL <= until <= after + TTL
    lower = {NAME.lower(): session}
    answered = speaker.post({"inputs": "Is there a circle?"}, headers=lower)
    assert answered.json()["generated_text"]
    assert answered.headers[NAME] == session
    closed = speaker.post({"requestType": "CLOSE"}, headers={NAME.upper(): session})
    assert closed.headers[CLOSED] == session
    assert NAME not in closed.headers
    again = speaker.post({"inputs": "Is there a circle?"}, headers={NAME: session})
    assert again.status_code == 410


def test_the_log_has_no_warnings_of_java(server: LocalServer) -> None:
    """Of methods that a later Java restricts."""
    log = log_path("environment").read_text()
    assert "Model server started." in log
    assert "WARNING: " not in log


def test_sessions_are_kept_in_the_folder(speaker: Speaker, folder: Path) -> None:
    """As long as they are open."""
    opened = speaker.post({"type": "open", "session_id": "kept"})
    assert opened.status_code == 200
    assert any("kept" in path.name for path in folder.rglob("*"))
    speaker.post({"type": "close", "session_id": "kept"})
