"""Rules for access."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.config.check import check_config, summary
from ts_stateful.config.schema import ConfigError, load_config

_GOOD: dict[str, Any] = {
    "continuousBatching": True,
    "batchSize": 64,
    "maxBatchDelay": 1,
    "startupTimeout": 1200,
}
_JWT = {"mode": "jwt", "issuer": "https://i.example", "audience": "chat", "jwks": "keys.json"}
_STATES = {
    "inputs": [{"name": "x", "shape": [1]}],
    "outputs": [{"name": "y", "shape": [1]}],
    "states": [{"name": "s", "shape": [1]}],
}


def _found(handler: dict[str, Any], **top: Any) -> list[tuple[str, str]]:
    config = load_config({**_GOOD, **top, "handler": handler})
    return [(finding.severity, finding.key) for finding in check_config(config)]


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ({"auth": "none"}, []),
        ({"auth": _JWT}, []),
        ({"auth": {**_JWT, "jwks": "https://i.example/keys"}}, []),
        ({"auth": {**_JWT, "jwks": "http://127.0.0.1:9/keys"}}, []),
        ({"auth": {**_JWT, "jwks": "http://localhost/keys"}}, []),
        ({"auth": {**_JWT, "jwks": "http://i.example/keys"}}, [("error", "handler.auth.jwks")]),
        ({"auth": {**_JWT, "jwks": "file:///keys"}}, [("error", "handler.auth.jwks")]),
        ({"auth": {**_JWT, "header": "Host"}}, [("error", "handler.auth.header")]),
        ({"auth": {"mode": "header", "header": "X-User"}}, [("warning", "handler.auth.header")]),
        (
            {"auth": {"mode": "header", "header": "authorization"}},
            [("error", "handler.auth.header"), ("warning", "handler.auth.header")],
        ),
        ({"clientIds": "strong"}, []),
        ({"auth": _JWT, "quotas": {"principals": {"a": {"openSessions": 1}}}}, []),
        (
            {"quotas": {"principals": {"a": {"openSessions": 1}}}},
            [("warning", "handler.quotas.principals")],
        ),
        ({"quotas": {"tokensPerMinute": 9}}, []),
        (
            {"quotas": {"tokensPerMinute": 9}, **_STATES},
            [("error", "handler.quotas.tokensPerMinute")],
        ),
        ({"clientIds": "strong", "auth": _JWT}, [("warning", "handler.clientIds")]),
        ({"clientIds": "strong", **_STATES}, [("warning", "handler.clientIds")]),
    ],
)
def test_access_that_protects_less_than_it_seems_is_found(
    handler: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """With the key to change."""
    assert _found(handler) == expected


def test_the_sequence_profile_shares_places() -> None:
    """TorchServe knows no principals."""
    top = {"continuousBatching": False, "sequenceBatching": True, "maxNumSequence": 63}
    found = _found({"auth": _JWT}, **top, sequenceMaxIdleMSec=600_000)
    assert found == [("warning", "handler.auth")]


@pytest.mark.parametrize(
    "auth",
    [
        "header",
        "jwt",
        {"mode": "none"},
        {"mode": "basic"},
        {"mode": "header"},
        {"mode": "header", "header": "a b"},
        {"mode": "jwt"},
        {**_JWT, "algorithms": ["none"]},
        {**_JWT, "leewaySec": -1},
        None,
    ],
)
def test_other_settings_are_refused(auth: Any) -> None:
    """Algorithms are no setting."""
    with pytest.raises(ConfigError, match=r"handler\.auth"):
        load_config({**_GOOD, "handler": {"auth": auth}})


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        ({}, "guesses"),
        ({"clientIds": "strong"}, "has the id"),
        ({"auth": _JWT}, "the claim sub of tokens from https://i.example"),
        ({"auth": {"mode": "header", "header": "X-User"}}, "X-User"),
    ],
)
def test_the_summary_says_whose_sessions_are(handler: dict[str, Any], sentence: str) -> None:
    """Also without a finding."""
    assert any(sentence in line for line in summary(load_config({**_GOOD, "handler": handler})))
