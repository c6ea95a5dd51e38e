"""Configurations edited for another profile or model."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.config.check import check_config
from ts_stateful.config.edit import completed, edited
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.protocol.profile import TORCHSERVE_PROFILES, Profile

_DOCUMENT: dict[str, Any] = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "continuousBatching": True,
    "batchSize": 16,
    "maxBatchDelay": 1,
    "startupTimeout": 1200,
    "maxNumSequence": 256,
    "handler": {"model": "model", "threads": 2},
}


@pytest.mark.parametrize("profile", TORCHSERVE_PROFILES)
def test_the_keys_select_the_requested_profile(profile: Profile) -> None:
    """After an edit of any document."""
    for before in TORCHSERVE_PROFILES:
        document = edited(edited(_DOCUMENT, profile=before), profile=profile)
        assert load_config(document).frontend.profile is profile


def test_sequence_never_opens_more_sessions_than_the_batch_holds() -> None:
    """In the sequence profile a session without a place in the batch would hang."""
    document = edited(_DOCUMENT, profile=Profile.SEQUENCE)
    assert (document["maxNumSequence"], document["batchSize"]) == (16, 17)
    assert document["sequenceMaxIdleMSec"] > 0


def test_async_has_a_batch_of_one() -> None:
    """A larger batch hangs in the async profile."""
    assert edited(_DOCUMENT, profile=Profile.ASYNC)["batchSize"] == 1


def test_only_the_model_of_the_handler_is_replaced() -> None:
    """`--model` sets only handler.model, and the original does not change."""
    document = edited(_DOCUMENT, model="owner/name")
    assert document["handler"] == {"model": "owner/name", "threads": 2}
    assert _DOCUMENT["handler"]["model"] == "model"


@pytest.mark.parametrize("profile", TORCHSERVE_PROFILES)
def test_a_configuration_of_a_model_alone_is_completed(profile: Profile) -> None:
    """Every key whose own default would hang or be slow is there, and no rule has a finding."""
    keys = edited({}, model="owner/name", profile=profile)
    for key in ("minWorkers", "maxWorkers", "batchSize", "maxNumSequence"):
        keys.pop(key, None)
    document = completed({**keys, "handler": {"model": "owner/name", "loadTimeoutSec": 900.5}})
    config = load_config(document)
    assert config.frontend.profile is profile
    assert config.frontend.startup_timeout_s == 1802
    assert not check_config(config)
    assert completed(document) == document


def test_what_is_given_stays() -> None:
    """Also a place for each session of the sequence profile."""
    document = {"batchSize": 5, "maxNumSequence": 4, "responseTimeout": 7, "startupTimeout": 9}
    assert completed(document).items() >= document.items()
    sequence = completed({"sequenceBatching": True, "batchSize": 5})
    assert (sequence["maxNumSequence"], sequence["batchSize"]) == (4, 5)
    assert "continuousBatching" not in sequence


def test_a_wrong_key_is_not_completed() -> None:
    """It is named."""
    with pytest.raises(ConfigError, match="modle"):
        completed({"handler": {"modle": "x"}})
