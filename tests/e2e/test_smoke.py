"""A TorchServe that was packed and started as a user does it answers."""

from __future__ import annotations

import httpx

from tests.e2e.speak import DEADLINE_S
from ts_stateful.serving.server import LocalServer


def test_the_server_is_healthy(continuous_server: LocalServer) -> None:
    """/ping answers 200 and says so."""
    answer = httpx.get(f"{continuous_server.http_url}/ping", timeout=DEADLINE_S)
    assert answer.status_code == 200
    assert answer.json() == {"status": "Healthy"}


def test_hello_names_the_profile(continuous_server: LocalServer) -> None:
    """`hello` passes through the handler and tells the profile."""
    answer = httpx.post(
        f"{continuous_server.http_url}/predictions/chat",
        json={"type": "hello"},
        timeout=DEADLINE_S,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["profile"] == "continuous"


def test_a_customized_description_has_the_figures(async_server: LocalServer) -> None:
    """In the async profile, where it can be asked for: of all engines together and of each."""
    url = f"{async_server.management_url}/models/chat?customized=true"
    (described,) = httpx.get(url, timeout=DEADLINE_S).json()
    stats = described["customizedMetadata"]
    assert stats["sessions_max"] == 256
    (engine,) = stats["engines"]
    assert (engine["up"], engine["sessions_open"]) == (True, stats["sessions_open"])
    assert engine["pid"] == async_server.engines()[0].pid
