"""Configurations edited for another profile or model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ts_stateful.config.edit import edited, main
from ts_stateful.config.schema import load_config
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


def test_the_command_prints_the_edited_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command writes YAML that loads as the same configuration."""
    path = tmp_path / "model-config.yaml"
    path.write_text(yaml.safe_dump(_DOCUMENT))
    assert main([str(path), "--model", "a/b", "--profile", "async"]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert document == edited(_DOCUMENT, model="a/b", profile=Profile.ASYNC)


def test_a_configuration_that_would_hang_is_not_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding is on standard error."""
    path = tmp_path / "model-config.yaml"
    path.write_text(yaml.safe_dump({**_DOCUMENT, "maxWorkers": 2}))
    assert main([str(path)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "maxWorkers" in output.err


def test_an_unknown_key_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo under `handler:` is named."""
    path = tmp_path / "model-config.yaml"
    path.write_text("handler:\n  modle: x\n")
    assert main([str(path)]) == 1
    assert "modle" in capsys.readouterr().err
