"""Settings in the environment with the names of other servers."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.config.environment import with_environment
from ts_stateful.config.schema import ConfigError, load_config

DOCUMENT: dict[str, Any] = {
    "sequenceMaxIdleMSec": 1000,
    "sequenceTimeoutMSec": 2000,
    "handler": {"model": "m"},
}


@pytest.mark.parametrize(
    "environ",
    [
        {"OPTION_SESSIONS_EXPIRATION": "3600"},
        {"SES_TTL_MIN": "60"},
        {"SES_TTL_MIN": "60", "OPTION_SESSIONS_EXPIRATION": "3600"},
    ],
)
def test_a_session_lives_until_its_time_is_up(environ: dict[str, str]) -> None:
    """Used or not."""
    config = load_config(with_environment(DOCUMENT, environ))
    assert (config.frontend.lifetime_s, config.frontend.idle_s) == (3600, 3600)


def test_sessions_can_be_switched_off() -> None:
    """In upper and lower case."""
    for value, enabled in (("false", False), ("True", True), ("", True)):
        document = with_environment(DOCUMENT, {"OPTION_ENABLE_STATEFUL_SESSIONS": value})
        assert load_config(document).handler.stateful_sessions is enabled


def test_sessions_are_kept_in_a_folder() -> None:
    """The other settings of the store stay as they are."""
    document = {"handler": {"model": "m", "store": {"url": "redis://x", "policy": "best_effort"}}}
    made = with_environment(document, {"OPTION_SESSIONS_PATH": "/dev/shm/djl sessions"})
    assert made["handler"] == {
        "model": "m",
        "store": {"url": "file:///dev/shm/djl%20sessions", "policy": "best_effort"},
    }
    assert document["handler"]["store"]["url"] == "redis://x"  # type: ignore[index]


def test_a_model_with_recurrent_state_has_sessions_in_memory() -> None:
    """Other settings are refused."""
    states: dict[str, Any] = {"handler": {"model": "m", "states": []}}
    enabled = with_environment(states, {"OPTION_ENABLE_STATEFUL_SESSIONS": "true"})
    assert enabled == states
    for name, value in (
        ("OPTION_ENABLE_STATEFUL_SESSIONS", "false"),
        ("OPTION_SESSIONS_PATH", "/x"),
    ):
        with pytest.raises(ConfigError, match=name):
            with_environment(states, {name: value})


def test_the_file_has_its_own_check() -> None:
    """With a message of its own."""
    document = with_environment({"handler": "x"}, {"OPTION_SESSIONS_PATH": "/x"})
    with pytest.raises(ConfigError, match="handler: expected `object`"):
        load_config(document)


@pytest.mark.parametrize("document", [None, {}, DOCUMENT])
def test_an_environment_without_settings_changes_nothing(document: dict[str, Any] | None) -> None:
    """Nor do empty variables."""
    assert with_environment(document, {"SES_TTL_MIN": " ", "PATH": "/bin"}) == (document or {})


@pytest.mark.parametrize(
    "environ",
    [
        {"SES_TTL_MIN": "0"},
        {"SES_TTL_MIN": "-1"},
        {"SES_TTL_MIN": "1.5"},
        {"SES_TTL_MIN": "²"},
        {"OPTION_SESSIONS_EXPIRATION": "1" * 5000},
        {"OPTION_SESSIONS_EXPIRATION": "soon"},
        {"OPTION_ENABLE_STATEFUL_SESSIONS": "yes"},
        {"OPTION_SESSIONS_PATH": "sessions"},
        {"SES_TTL_MIN": "60", "OPTION_SESSIONS_EXPIRATION": "60"},
    ],
)
def test_an_invalid_value_is_refused_by_its_name(environ: dict[str, str]) -> None:
    """At the start, not at the first session."""
    with pytest.raises(ConfigError, match=next(iter(environ))):
        with_environment(DOCUMENT, environ)
