"""Limits of requests, beside the other settings of the repository."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from ts_stateful.config.limits import LimitsConfig, Quota, QuotasConfig
from ts_stateful.config.schema import ConfigError, MediaConfig, load_config


def test_the_largest_image_fits_into_a_request(repository: Path) -> None:
    """In base64, with all JSON beside it; and not much more than that fits."""
    text = (repository / "config.properties").read_text()
    (size,) = map(int, re.findall(r"^max_request_size=(\d+)$", text, re.MULTILINE))
    needed = 4 * math.ceil(MediaConfig().max_bytes / 3) + LimitsConfig().max_json_bytes
    assert needed < size < 1.05 * needed
    assert size < LimitsConfig().max_in_flight_bytes


@pytest.mark.parametrize("keys", [{}, {"states": [{"name": "h", "shape": [1]}]}])
def test_limits_are_settings_of_all_models(keys: dict[str, Any]) -> None:
    """A wrong one is refused by its path."""
    limits = {"maxJsonBytes": 5, "maxJsonDepth": 8}
    tensors = {"inputs": [{"name": "x"}], "outputs": [{"name": "y"}]} if keys else {}
    document = {"handler": {"model": "m", "limits": limits, **keys, **tensors}}
    expected = LimitsConfig(max_json_bytes=5, max_json_depth=8)
    assert load_config(document).engine.limits == expected
    limits["maxJsonDepth"] = 1000
    with pytest.raises(ConfigError, match="maxJsonDepth"):
        load_config(document)


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
