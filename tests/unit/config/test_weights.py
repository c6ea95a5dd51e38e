"""The formats of weights are found by the names of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ts_stateful.config.weights import pickled_weights, weights_cure


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], None),
        (["model.safetensors"], None),
        (["pytorch_model.bin"], "pytorch_model.bin"),
        (["pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"], "pytorch_model.bin.index.json"),
        (["pytorch_model.bin", "model.safetensors.index.json"], None),
        (["pytorch_model.bin", "other.safetensors"], "pytorch_model.bin"),
    ],
)  # fmt: skip
def test_pickles_count_where_there_are_no_safetensors(
    files: list[str], found: str | None, tmp_path: Path
) -> None:
    """Of one file or several, under the names of the library."""
    for name in files:
        (tmp_path / name).write_bytes(b"")
    assert pickled_weights(tmp_path) == found


def test_a_configuration_can_name_the_file(tmp_path: Path) -> None:
    """The library prefers it to all others."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"transformers_weights": "adapter_model.bin"}')
    assert pickled_weights(tmp_path) == "adapter_model.bin"
    (tmp_path / "config.json").write_text('{"transformers_weights": "a.safetensors"}')
    assert pickled_weights(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_the_cure_names_the_class(tmp_path: Path, text: str) -> None:
    """A configuration that cannot be read counts as that of a language model."""
    (tmp_path / "config.json").write_text(text)
    assert "AutoModelForCausalLM" in weights_cure(tmp_path)
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    assert "AutoModelForImageTextToText" in weights_cure(tmp_path)
