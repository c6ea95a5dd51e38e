"""The administration of a server, by the commands for operators, at its socket and its port."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.server import ENDLESS, profile_server
from tests.e2e.speak import Speaker, eventually
from ts_stateful.asgi.supervisor import AsgiServer
from ts_stateful.cli import main
from ts_stateful.frontend.audit import shortened
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

_TOKEN = "a-token-of-this-test"
_QUESTION = {"prompt": "What color is the circle?"}
Speak = Callable[[LocalServer], Speaker]
Operate = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsgiServer]:
    """A server of this file's own: it drains, and its engine is replaced."""
    folder = tmp_path_factory.mktemp("administration")
    environ = {"TS_STATEFUL_ADMIN_TOKEN": _TOKEN}
    made = profile_server(
        Profile.ASGI, folder, name="administration", endless=True, environ=environ, admin_port=0
    )
    assert isinstance(made, AsgiServer)
    with made:
        yield made


@pytest.fixture
def speaker(server: AsgiServer, speak: Speak) -> Speaker:
    """A client."""
    return speak(server)


@pytest.fixture
def operate(server: AsgiServer, capsys: pytest.CaptureFixture[str]) -> Operate:
    """Runs a command for operators, and returns its output."""

    def run(*arguments: str, status: int = 0) -> str:
        assert main([*arguments, "--admin", server.admin_urls[0]]) == status
        return capsys.readouterr().out

    return run


def listed(operate: Operate, *arguments: str) -> dict[str, dict[str, Any]]:
    """The sessions by their ids."""
    document = json.loads(operate("sessions", "--json", *arguments))
    return {one["session_id"]: one for one in document["sessions"]}


@pytest.fixture
def examine(server: AsgiServer, capsys: pytest.CaptureFixture[str]) -> Operate:
    """Runs the doctor, and returns its document."""
    urls = ["--url", server.http_url, "--management-url", server.management_url]

    def run(*arguments: str, status: int = 0) -> Any:
        command = ["doctor", *urls, "--metrics-url", server.metrics_url, "--timeout", "60"]
        assert main([*command, "--model", server.name, "--json", *arguments]) == status
        return json.loads(capsys.readouterr().out)

    return run


def test_the_doctor_examines_the_server(
    server: AsgiServer, operate: Operate, examine: Operate
) -> None:
    """Its readiness, models, versions, limits and metrics. It names a model that is missing, and a server that drains."""
    found = examine()
    assert (found["healthy"], found["findings"]) == (True, [])
    assert found["models"] == {server.name: "ready"}
    assert found["model_version"] == "1.0"
    assert found["limits"]["max_sessions"] > 0
    metrics = ("--metrics-url", f"{server.metrics_url}/metrics")
    printed = ("--url", f"{server.http_url}/predictions/{server.name}", *metrics)
    assert examine(*printed, "--model", "missing") == found
    (missing,) = examine("--model", "missing", status=1)["findings"]
    assert server.name in missing["message"]
    (elsewhere,) = examine("--metrics-url", server.management_url)["findings"]
    assert (elsewhere["severity"], elsewhere["key"]) == ("warning", "metrics")
    operate("drain")
    try:
        (drains,) = examine(status=1)["findings"]
        assert drains["key"] == "readiness"
    finally:
        operate("undrain")


def test_only_this_user_reaches_the_socket(server: AsgiServer) -> None:
    """By the mode of the file; the port needs the token, and the public ports have nothing of it."""
    socket, port = server.admin_urls
    path = Path(socket.removeprefix("unix://"))
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.geteuid()
    assert httpx.get(f"{port}/status").status_code == 401
    allowed = httpx.get(f"{port}/status", headers={"Authorization": f"Bearer {_TOKEN}"})
    assert allowed.json()["status"] == "ready"
    for url in (server.http_url, server.management_url, server.metrics_url):
        assert httpx.get(f"{url}/status").status_code == 404
        assert httpx.get(f"{url}/sessions").status_code == 404


def test_the_token_is_not_in_the_engines(server: AsgiServer) -> None:
    """They decode what clients send, and start other processes."""
    (engine,) = server.engines()
    assert _TOKEN not in engine.environ().values()


def test_a_session_is_listed_evicted_and_closed(speaker: Speaker, operate: Operate) -> None:
    """Its client notices nothing of the first two."""
    session = speaker.open()
    speaker.ask(_QUESTION, session=session)
    shown = listed(operate)[session]
    assert (shown["turns"], shown["residency"], shown["model"]) == (1, "device", "chat")
    assert session in operate("sessions", "--sort", "age")
    assert "red" not in operate("sessions", session)
    operate("evict", session)
    evicted = listed(operate)[session]
    assert (evicted["residency"], evicted["cached_tokens"]) == ("record", 0)
    assert evicted["device_bytes"] < shown["device_bytes"]
    assert speaker.ask(_QUESTION, session=session)["turn"] == 2
    assert operate("close", session) == "closed 1 session\n"
    assert session not in listed(operate)
    answer = speaker.post(_QUESTION, session=session)
    assert answer.json()["error"]["code"] == "session_closed"
    operate("close", session, status=1)


def test_closing_a_session_ends_its_turn(speaker: Speaker, operate: Operate) -> None:
    """The client gets the text so far, as if another one had closed the session."""
    session = speaker.open()
    headers = {"ts_request_sequence_id": session}
    request = {**ENDLESS, "stream": True}
    with speaker.http.stream("POST", speaker.url, json=request, headers=headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert listed(operate)[session]["running"] is True
        operate("evict", session, status=1)
        operate("close", session)
        rest = [line for line in lines if line.startswith("data: {")]
    assert json.loads(rest[-1].removeprefix("data: "))["finish_reason"] == "cancelled"


def test_the_sessions_of_a_tenant_end(speaker: Speaker, operate: Operate) -> None:
    """And no others."""
    own = [speaker.open(metadata={"tenant": "acme"}) for _ in range(3)]
    other = speaker.open(metadata={"tenant": "zoe"})
    assert set(listed(operate, "--tenant", "acme")) == set(own)
    assert operate("close", "--tenant", "acme") == "closed 3 sessions\n"
    assert other in listed(operate)
    assert not set(own) & set(listed(operate))
    operate("close", other)


def test_a_drained_server_keeps_its_sessions(
    server: AsgiServer, speaker: Speaker, operate: Operate
) -> None:
    """It is not ready, opens none, and takes them again."""
    session = speaker.open()
    assert operate("drain").startswith("draining; ")
    try:
        ready = httpx.get(f"{server.http_url}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        refused = speaker.post({"type": "open"})
        assert refused.status_code == 503
        assert "drains" in refused.json()["error"]["message"]
        assert speaker.ask(_QUESTION, session=session)["turn"] == 1
    finally:
        assert operate("undrain").startswith("ready; ")
    assert httpx.get(f"{server.http_url}/readyz").status_code == 200
    operate("close", speaker.open())
    operate("close", session)


def test_an_engine_is_replaced_and_its_sessions_come_back(
    server: AsgiServer, speaker: Speaker, operate: Operate
) -> None:
    """A number of an engine that there is not is refused."""
    session = speaker.open()
    speaker.ask(_QUESTION, session=session)
    (before,) = server.engines()
    assert f"(process {before.pid})" in operate("restart-engine", "0")
    eventually(lambda: before.pid not in {engine.pid for engine in server.engines()})
    assert speaker.ask(_QUESTION, session=session)["turn"] == 2
    assert session in operate("top")
    operate("restart-engine", "7", status=1)
    operate("close", session)


def test_the_level_of_the_log_changes(
    server: AsgiServer, speaker: Speaker, operate: Operate
) -> None:
    """Lines of turns are at INFO."""
    log = server.log_file
    assert log is not None

    def turn() -> str:
        """Take a turn, and return the name of its session in the log."""
        session = speaker.open()
        speaker.ask(_QUESTION, session=session)
        operate("close", session)
        return f"session={shortened(session)}"

    operate("log-level", "WARNING")
    silent = turn()
    operate("log-level", "INFO")
    loud = turn()
    eventually(lambda: loud in log.read_text())
    assert silent not in log.read_text()


def test_a_front_that_starts_again_has_its_socket(server: AsgiServer, operate: Operate) -> None:
    """The supervisor owns it."""
    status = httpx.HTTPTransport(uds=server.admin_urls[0].removeprefix("unix://"))
    with httpx.Client(transport=status, base_url="http://admin", timeout=60) as client:
        pid = client.get("/status").json()["pid"]
        psutil.Process(pid).kill()

        def is_another() -> bool:
            try:
                return bool(client.get("/status").json()["pid"] != pid)
            except httpx.HTTPError:
                return False

        eventually(is_another)
        eventually(server.is_ready)
    assert operate("sessions").startswith("SESSION")
