"""Adapters are checked without torch, before anything is packed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ts_stateful.config.check import Finding, check_file

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
PAIR = (f"{LAYER}.lora_A.weight", f"{LAYER}.lora_B.weight")


def write_adapter(folder: Path, names: tuple[str, ...] = PAIR, **settings: Any) -> None:
    """The files that `peft` saves, as far as they are read here."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **settings}))
    tensors = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    weights = len(header).to_bytes(8, "little") + header
    (folder / "adapter_model.safetensors").write_bytes(weights)


def findings(folder: Path, adapters: dict[str, str]) -> list[Finding]:
    """Those of a configuration with these adapters."""
    path = folder / "model-config.yaml"
    path.write_text(json.dumps({"handler": {"model": "owner/name", "adapters": adapters}}))
    return [found for found in check_file(path) if "adapters" in found.key]


def test_an_adapter_beside_the_configuration_is_read(tmp_path: Path) -> None:
    """By a relative path or another one; one that is not here may be where the server runs."""
    write_adapter(tmp_path / "adapters" / "red")
    known = {"red": "adapters/red", "blue": str(tmp_path / "adapters" / "red")}
    assert not findings(tmp_path, known)
    [found] = findings(tmp_path, {**known, "green": "adapters/green"})
    assert found.severity == "warning"
    assert str(found).startswith("warning: handler.adapters: green: adapters/green is not a folder")


@pytest.mark.parametrize(
    ("names", "settings", "reason"),
    [
        (PAIR, {"use_dora": True}, "`use_dora` True is not supported"),
        (PAIR, {"peft_type": "IA3"}, "`peft_type` 'IA3' is not supported"),
        (PAIR[:1], {}, "has only one of A and B of `model.layers.0.self_attn.q_proj`"),
        (("lm_head.weight",), {}, "`lm_head.weight` is not the change of a linear layer"),
        ((), {}, "is empty"),
    ],
)
def test_what_the_engine_would_refuse_is_an_error(
    names: tuple[str, ...], settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """With the same reason."""
    write_adapter(tmp_path / "red", names, **settings)
    [found] = findings(tmp_path, {"red": "red"})
    assert found.severity == "error"
    assert reason in found.message


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x02\0\0\0\0\0\0\0[]"])
def test_damaged_files_are_errors(content: bytes, tmp_path: Path) -> None:
    """Without a traceback."""
    write_adapter(tmp_path / "red")
    (tmp_path / "red" / "adapter_model.safetensors").write_bytes(content)
    [found] = findings(tmp_path, {"red": "red"})
    assert found.severity == "error"
