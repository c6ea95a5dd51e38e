"""The checks of a model before its engines start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.weights import NO_WEIGHTS
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.frontend.assemble import check_model


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ((), "model.safetensors"),
        (("a.safetensors",), "b.safetensors"),
        (("a.safetensors", "b.safetensors"), ""),
    ],
)
def test_missing_weights_are_found_by_the_names_of_files(
    files: Sequence[str], missing: str, is_packed: bool, tmp_path: Path
) -> None:
    """In an archive, or in a folder beside it. An engine would find them after it has imported torch."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for name in files:
        (model / name).write_bytes(NO_WEIGHTS)
    if files:
        index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    config = load_config({"handler": {"model": "model" if is_packed else str(model)}})
    folder = tmp_path if is_packed else tmp_path / "archive"
    if not missing:
        check_model(config, folder, torchserve=False)
        return
    with pytest.raises(ConfigError) as refused:
        check_model(config, folder, torchserve=False)
    assert str(refused.value) == (
        f"handler.model: {model} lacks weights: {missing}; download them; `git lfs pull` does after a clone"
    )
