"""A real Prometheus that reads a server: the dashboard's panels have data, and alerts fire when something happens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import profile_server
from tests.e2e.speak import DEADLINE_S, DIALOGUE, Speaker, error_of, eventually
from tests.support.prometheus import (
    NO_PROMETHEUS,
    OBSERVABILITY,
    Prometheus,
    prometheus,
    prometheus_binary,
)
from ts_stateful.process.drain import wait_ended
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

_MAX_SESSIONS = 4
_COUNTED = {
    "StatefulTurns": "ts_stateful_turns_total",
    "StatefulErrors": "ts_stateful_errors_total",
    "StatefulEngineRestarts": "ts_stateful_engine_restarts_total",
    "StatefulStoreCalls": "ts_stateful_store_calls_total",
}
_VARIABLES = {"__rate_interval": "5m", "model": "chat", "instance": ".*", "engine": ".*"}


class Watched:
    """A server with a file store, a client of it, and Prometheus, which has read its first metrics."""

    def __init__(self, folder: Path, stack: ExitStack, binary: str) -> None:
        self.store = folder / "store"
        self.server = stack.enter_context(
            profile_server(
                Profile.ASGI,
                folder,
                name="observability",
                handler={"store": {"url": self.store.as_uri()}},
                maxNumSequence=_MAX_SESSIONS,
            )
        )
        self.speaker = Speaker(self.server)
        stack.callback(self.speaker.http.close)
        target = self.server.metrics_url.removeprefix("http://")
        self.prometheus: Prometheus = stack.enter_context(
            prometheus(binary, folder / "prometheus", target)
        )
        eventually(self.prometheus.is_ready)
        eventually(lambda: self.prometheus.query("ts_stateful_engine_up") == [1.0])

    def kill_engine(self) -> None:
        """Kill it, and return when another one is connected."""
        num_dead = self.speaker.figure("StatefulEngineRestarts")
        (engine,) = self.server.engines()
        engine.kill()
        wait_ended([engine], DEADLINE_S)
        eventually(lambda: self.speaker.figure("StatefulEngineRestarts") > num_dead)
        eventually(lambda: self.speaker.figure("StatefulEngineUp") == 1.0)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Start both for all tests of this file."""
    binary = prometheus_binary()
    if binary is None:
        pytest.skip(NO_PROMETHEUS)
    with ExitStack() as stack:
        yield Watched(tmp_path_factory.mktemp("watched"), stack, binary)


def test_an_engine_that_dies_is_alerted(watched: Watched) -> None:
    """While it is down, which its fork server decides here, and when it has died three times. Its session goes on."""
    session = watched.speaker.open()
    (engine,) = watched.server.engines()
    forks = engine.parent()
    assert forks is not None
    forks.suspend()
    engine.kill()
    try:
        eventually(partial(watched.prometheus.has_fired, "StatefulEngineDown"))
    finally:
        forks.resume()
    eventually(lambda: watched.speaker.figure("StatefulEngineUp") == 1.0)
    for question, answer in DIALOGUE[:2]:
        watched.kill_engine()
        assert watched.speaker.ask({"prompt": question}, session=session)["text"] == answer
    eventually(partial(watched.prometheus.has_fired, "StatefulEngineRestarting"))
    watched.speaker.ask({"type": "close"}, session=session)


def test_a_store_that_fails_is_alerted(watched: Watched) -> None:
    """By its failures, and as errors of the server. The turn succeeds when the store is back."""
    session, question = watched.speaker.open(), {"prompt": DIALOGUE[0][0]}
    elsewhere = watched.store.rename(watched.store.with_name("elsewhere"))
    watched.store.touch()
    response = watched.speaker.post(question, session=session)
    assert error_of(response.json()) == ("store_unavailable", 503)
    for alert in ("StatefulStoreFailing", "StatefulErrorRatioHigh"):
        eventually(partial(watched.prometheus.has_fired, alert))
    watched.store.unlink()
    elsewhere.rename(watched.store)
    assert watched.speaker.ask(question, session=session)["text"] == DIALOGUE[0][1]
    watched.speaker.ask({"type": "close"}, session=session)


def test_sessions_at_their_limit_are_alerted(watched: Watched) -> None:
    """Not before the limit is near."""
    assert not watched.prometheus.has_fired("StatefulSessionsNearLimit")
    sessions = [watched.speaker.open() for _ in range(_MAX_SESSIONS)]
    eventually(lambda: watched.prometheus.has_fired("StatefulSessionsNearLimit"))
    for session in sessions:
        watched.speaker.ask({"type": "close"}, session=session)


def dashboard() -> dict[str, Any]:
    """The dashboard of this repository."""
    file = OBSERVABILITY / "grafana" / "dashboards" / "ts-stateful.json"
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def filled(query: str) -> str:
    """A query as Grafana sends it."""
    text = re.sub(r"\$(\w+)", lambda found: _VARIABLES[found[1]], query)
    assert "$" not in text
    return text


def check_panels(prometheus: Prometheus) -> None:
    """Check that each query of the dashboard, with the variables' values, has a number for a series at least."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query = filled(target["expr"])
            eventually(partial(prometheus.has_data, query))


def test_each_panel_has_data(watched: Watched) -> None:
    """After a turn, an error and the death of an engine."""
    speaker = watched.speaker
    watched.kill_engine()
    assert speaker.post({"prompt": 5}).status_code == 400
    speaker.ask({"prompt": "Go.", "max_new_tokens": 8, "ignore_eos": True}, session=speaker.open())
    for name, series in _COUNTED.items():
        eventually(partial(watched.prometheus.has_sum, series, speaker.figure(name)))
    check_panels(watched.prometheus)


def test_each_panel_has_data_of_torchserve(
    continuous_server: LocalServer, metrics_port: int, tmp_path: Path
) -> None:
    """Its worker has the same series at `handler.metricsPort`."""
    binary = prometheus_binary()
    if binary is None:
        pytest.skip(NO_PROMETHEUS)
    speaker = Speaker(continuous_server)
    with (
        closing(speaker.http),
        prometheus(binary, tmp_path, f"127.0.0.1:{metrics_port}") as reader,
    ):
        eventually(reader.is_ready)
        eventually(lambda: reader.query("ts_stateful_engine_up") == [1.0])
        (engine,) = continuous_server.engines()
        engine.kill()
        assert speaker.post({"prompt": 5}).status_code == 400
        session = speaker.open()
        speaker.ask({"prompt": "Go.", "max_new_tokens": 8, "ignore_eos": True}, session=session)
        eventually(partial(reader.has_sum, 'ts_stateful_errors_total{code="invalid_request"}', 1))
        check_panels(reader)
        speaker.ask({"type": "close"}, session=session)


def test_each_variable_has_values(watched: Watched) -> None:
    """Those of the model, its address and its only engine."""
    found = {}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.findall(
                r"^label_values\((.*), (\w+)\)$", variable["query"]["query"]
            )[0]
            found[variable["name"]] = watched.prometheus.values(label, filled(series))
    address = watched.server.metrics_url.removeprefix("http://")
    assert found == {"model": ["chat"], "instance": [address], "engine": ["0"]}


def test_a_server_that_is_lost_is_alerted(watched: Watched) -> None:
    """When Prometheus cannot read its metrics."""
    watched.server.stop()
    eventually(lambda: watched.prometheus.has_fired("StatefulTargetDown"))
