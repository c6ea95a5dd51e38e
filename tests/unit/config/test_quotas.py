"""The settings of quotas."""

from __future__ import annotations

import pytest

from ts_stateful.config.quotas import Quota, QuotasConfig
from ts_stateful.config.schema import ConfigError, load_config


def test_a_principals_own_quotas_replace_those_of_all() -> None:
    """One that is left out is the one of all; clients without a principal have those of all."""
    quotas = {"openSessions": 2, "tokensPerMinute": 50, "principals": {"big": {"openSessions": 9}}}
    settings = load_config({"handler": {"model": "m", "quotas": quotas}}).engine.quotas
    everybody = Quota(open_sessions=2, tokens_per_minute=50)
    assert settings.of("big") == Quota(open_sessions=9, tokens_per_minute=50)
    assert settings.of("other") == settings.of(None) == everybody


def test_there_are_none_by_default() -> None:
    """And sessions are parked."""
    engine = load_config({"handler": {"model": "m"}}).engine
    assert engine.quotas == QuotasConfig()
    assert engine.quotas.of("any") == Quota()
    assert engine.on_full == "park"


@pytest.mark.parametrize(
    ("quotas", "key"),
    [
        ({"openSessions": 0}, "openSessions"),
        ({"sessions": 1}, "sessions"),
        ({"principals": {"a": {"queuedBytes": "x"}}}, "queuedBytes"),
        ({"principals": {"a": {"principals": {}}}}, "principals"),
    ],
)
def test_a_wrong_one_is_refused_by_its_path(quotas: dict[str, object], key: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(ConfigError, match=key):
        load_config({"handler": {"model": "m", "quotas": quotas}})
