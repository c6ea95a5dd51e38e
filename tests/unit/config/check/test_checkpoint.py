"""Defects of a model's folder are found when it is packed, with the cure."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.weights import NO_WEIGHTS, PART
from ts_stateful.config.check import check_checkpoint

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
FILES = ("tokenizer.json", "model.safetensors", "chat_template.jinja")


def write(folder: Path, config: object, *files: str) -> Path:
    """A folder with this configuration and files that are empty, hold an empty object, or no weights."""
    (folder / "config.json").write_text(json.dumps(config))
    for name in files:
        empty = b"{}" if name.endswith(".json") else b""
        (folder / name).write_bytes(NO_WEIGHTS if name.endswith(".safetensors") else empty)
    return folder


def test_a_whole_folder_passes(tmp_path: Path) -> None:
    """Also one whose template is among the tokenizer's settings."""
    assert not list(check_checkpoint(write(tmp_path, LLAMA, *FILES)))
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert not list(check_checkpoint(tmp_path))


def test_voxtral_has_no_files_of_a_template(tmp_path: Path) -> None:
    """Nor a tokenizer.json: its template is here, and its tokenizer is read from tekken.json."""
    voxtral = {"model_type": "voxtral", "audio_config": {"hidden_size": 8}}
    assert not list(check_checkpoint(write(tmp_path, voxtral, "tekken.json", "model.safetensors")))


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_a_vision_tower_of_another_package(tmp_path: Path) -> None:
    """Gemma 3n cannot be made without it, not even for its text; the cure installs it."""
    gemma = {"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"]}
    [finding] = check_checkpoint(write(tmp_path, {**LLAMA, **gemma}, *FILES))
    assert finding.severity == "error"
    assert "vision tower needs timm, and that is not installed" in finding.message
    assert "[vision]" in finding.cure


@pytest.mark.parametrize(
    ("change", "severity", "message", "cure"),
    [
        ({"model_type": "lama"}, "error", "model_type 'lama'", "did you mean llama?"),
        ({"model_type": None}, "error", "model_type None", "correct it"),
        ({"model_type": "deepseek_v4"}, "error", "compress blocks of tokens", "docs/models.md"),
        ({"model_type": "granite_speech"}, "error", "needs torchaudio", "docs/models.md"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "error",
            "quantised by gptq, which needs gptqmodel",
            "compressed-tensors",
        ),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 4}},
            "error",
            "quantised by awq, which needs gptqmodel",
            "compressed-tensors",
        ),
        ({"model_type": "clip"}, "error", "is a clip model, neither", "docs/models.md"),
        (
            {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
            "error",
            "weights of BertForMaskedLM",
            "BertLMHeadModel",
        ),
        (
            {"architectures": ["LlamaForCausalML"]},
            "warning",
            "architecture LlamaForCausalML",
            "did you mean LlamaForCausalLM?",
        ),
    ],
)
def test_a_wrong_architecture(
    change: dict[str, Any], severity: str, message: str, cure: str, tmp_path: Path
) -> None:
    """A typo, an encoder, a model without text."""
    [finding] = check_checkpoint(write(tmp_path, {**LLAMA, **change}, *FILES))
    assert finding.severity == severity
    assert finding.key == "handler.model"
    assert message in finding.message
    assert cure in finding.cure


@pytest.mark.parametrize("kind", ["qwen2_audio", "qwen3_asr", "qwen2_5_omni", "qwen3_omni_moe"])
def test_a_model_for_audio(kind: str, tmp_path: Path) -> None:
    """It is refused for what it is, not for its class."""
    [finding] = check_checkpoint(write(tmp_path, {"model_type": kind}, *FILES))
    assert finding.severity == "error"
    assert f"is a {kind} model, which takes audio" in finding.message


@pytest.mark.parametrize("kind", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_a_model_that_also_speaks(kind: str, tmp_path: Path) -> None:
    """The part that sees, hears and writes is served, alone or in the whole checkpoint."""
    part = {
        "model_type": f"{kind}_thinker",
        "architectures": ["AnOldNameForConditionalGeneration"],
        "audio_config": {"hidden_size": 8},
    }
    whole = {"model_type": kind, "architectures": ["SomeModel"], "thinker_config": part}
    assert not list(check_checkpoint(write(tmp_path, whole, *FILES)))
    assert not list(check_checkpoint(write(tmp_path, {**part, "architectures": []}, *FILES)))


@pytest.mark.parametrize("kind", ["phi4_multimodal", "gemma4"])
def test_a_model_that_also_takes_audio(kind: str, tmp_path: Path) -> None:
    """A warning says what is not served, if the checkpoint has it."""
    config = {"model_type": kind, "audio_config": {"hidden_size": 8}}
    [finding] = check_checkpoint(write(tmp_path, config, *FILES))
    assert finding.severity == "warning"
    assert "served without audio" in finding.message
    assert not list(check_checkpoint(write(tmp_path, {**config, "audio_config": None}, *FILES)))


@pytest.mark.parametrize(
    "config",
    [
        {**LLAMA, "architectures": ["LlamaModel"]},
        {**LLAMA, "architectures": []},
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}},
    ],
    ids=["base model", "unnamed", "code of its own"],
)
def test_what_only_loading_shows_passes(config: dict[str, Any], tmp_path: Path) -> None:
    """A head may be tied, and foreign code may do anything."""
    assert not list(check_checkpoint(write(tmp_path, config, *FILES)))


@pytest.mark.parametrize(
    ("missing", "severity", "message"),
    [
        ("tokenizer.json", "error", "no tokenizer"),
        ("model.safetensors", "error", "lacks weights: model.safetensors"),
        ("chat_template.jinja", "warning", "no chat template"),
    ],
)
def test_a_missing_file(missing: str, severity: str, message: str, tmp_path: Path) -> None:
    """Each by itself."""
    write(tmp_path, LLAMA, *(name for name in FILES if name != missing))
    [finding] = check_checkpoint(tmp_path)
    assert finding.severity == severity
    assert message in finding.message


def test_a_template_of_the_configuration_is_enough(tmp_path: Path) -> None:
    """`handler.chatTemplate`."""
    write(tmp_path, LLAMA, "tokenizer.json", "model.safetensors")
    assert not list(check_checkpoint(tmp_path, has_template=True))


def test_missing_shards_are_named(tmp_path: Path) -> None:
    """By the index of the weights; a broken one is reported, too."""
    write(tmp_path, LLAMA, "tokenizer.json", "chat_template.jinja", "a.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    [finding] = check_checkpoint(tmp_path)
    assert finding.message.endswith("lacks weights: b.safetensors")
    maps: list[object] = [[], {}, {"x": 3}, {"x": [1]}]
    for broken in ("{", "[]", "{}", *(json.dumps({"weight_map": each}) for each in maps)):
        index.write_text(broken)
        [finding] = check_checkpoint(tmp_path)
        assert "cannot be read" in finding.message


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "\xff", "[" * 100_000, '{"model_type": ["a"]}', '{"model_type": {"a": 1}}'),
        *('{"architectures": "X"}', '{"architectures": [3]}', '{"architectures": 5}'),
        '{"thinker_config": {"model_type": [1]}}',
    ],
)
def test_a_broken_configuration(text: str, tmp_path: Path) -> None:
    """One finding, and no traceback."""
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    [finding] = check_checkpoint(tmp_path)
    assert "cannot be read" in finding.message


@pytest.mark.parametrize(
    "text", ['{"model": {"type": "BPE", ', "null", "[]", "version https", '{"a": ' + "[" * 100_000]
)
@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.json", "tokenizer_config.json", "processor_config.json"),
        *("generation_config.json", "preprocessor_config.json"),
    ],
)
def test_damaged_settings_are_named(name: str, text: str, tmp_path: Path) -> None:
    """What libraries report is a place in a file without its name, or an error of Python."""
    write(tmp_path, LLAMA, *FILES)
    (tmp_path / name).write_text(text)
    [finding] = check_checkpoint(tmp_path)
    assert finding.severity == "error"
    assert finding.cure == "download it again; `git lfs pull` does after a clone"
    assert finding.message.startswith(f"{tmp_path / name} cannot be read: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n", "a pointer of git-lfs"),
        (b"", "truncated"),
        (b"\xff\xfe\0garbage", "no safetensors file"),
        (b"\2\0\0\0\0\0\0\0xx", "malformed"),
        ((1_000_010).to_bytes(8, "little") + b'{"a":{"x":' + b"[" * 1_000_000, "nested too deeply"),
        (PART, "has 66 bytes instead of 70"),
        (NO_WEIGHTS + b"more", "has 14 bytes instead of 10"),
    ],
)
@pytest.mark.parametrize("name", ["model.safetensors", "a.safetensors"])
def test_damaged_weights_are_found(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    """By the length and the header with which the file begins; of shards, too."""
    write(tmp_path, LLAMA, "tokenizer.json", "chat_template.jinja")
    (tmp_path / name).write_bytes(content)
    if name == "a.safetensors":
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"x": name}}))
    [finding] = check_checkpoint(tmp_path)
    assert finding.severity == "error"
    assert finding.message.startswith(f"{tmp_path / name} cannot be read: ")
    assert reason in finding.message


@pytest.mark.parametrize("kind", ["other name", "folder", "dead link"])
def test_weights_that_the_library_would_not_load_are_missing(kind: str, tmp_path: Path) -> None:
    """It wants `model.safetensors` or an index."""
    weights = tmp_path / "model.safetensors"
    write(tmp_path, LLAMA, "tokenizer.json", "chat_template.jinja", "model.fp16.safetensors")
    if kind == "folder":
        weights.mkdir()
    elif kind == "dead link":
        weights.symlink_to("none")
    [finding] = check_checkpoint(tmp_path)
    assert finding.message.endswith("lacks weights: model.safetensors")


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("chat_template.jinja", "a\n{% if %}", "line 2 of {}: "),
        ("chat_template.jinja", "\xff", "{} cannot be read: "),
        ("chat_template.jinja", "{{" + "(" * 5000 + "a", "{} cannot be read: "),
        ("processor_config.json", '{"chat_template": "{% for"}', "line 1 of chat_template of {}: "),
        ("tokenizer_config.json", '{"chat_template": "{{"}', "line 1 of chat_template of {}: "),
    ],
)
def test_a_template_that_does_not_parse(name: str, text: str, place: str, tmp_path: Path) -> None:
    """It is named with its line, unless the configuration has another one."""
    write(tmp_path, LLAMA, "tokenizer.json", "model.safetensors")
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    [finding] = check_checkpoint(tmp_path)
    assert (finding.severity, finding.key) == ("error", "handler.model")
    assert finding.message.startswith(place.format(tmp_path / name))
    assert not list(check_checkpoint(tmp_path, has_template=True))


def test_templates_for_training_parse(tmp_path: Path) -> None:
    """The library knows a tag that marks replies."""
    write(tmp_path, LLAMA, *FILES)
    template = "{% generation %}{% for m in messages %}{% break %}{% endfor %}{%- endgeneration -%}"
    (tmp_path / "chat_template.jinja").write_text(template)
    assert not list(check_checkpoint(tmp_path))


def test_without_transformers_names_are_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that only packs or calls."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert not list(check_checkpoint(write(tmp_path, {"model_type": "lama"}, *FILES)))
