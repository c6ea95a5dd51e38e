"""Weights are loaded from safetensors alone; a response template may come from the configuration."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support.tiny.calling import calling
from tests.support.tiny.small import save
from tests.support.tiny.text import gpt2, llama
from ts_stateful.config.schema import ConfigError, HandlerConfig
from ts_stateful.language.conversation.history import Delta
from ts_stateful.language.network.load import load_model
from ts_stateful.language.text.dialogue import Dialogue
from ts_stateful.protocol.chat import Said

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose only weights are a pickle."""
    folder = save(llama(), tmp_path_factory.mktemp("pickled"))
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    return folder


def test_a_pickle_is_refused_and_can_be_converted(pickled: Path) -> None:
    """The error has the command that converts it; the model then loads, with the same weights."""
    settings = HandlerConfig(model=str(pickled))
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin") as refused:
        load_model(settings, pickled, CPU)
    command = re.search(r'python -c "(.*)"', str(refused.value))
    assert command is not None
    subprocess.run([sys.executable, "-c", command[1]], check=True, capture_output=True)
    model = load_model(settings, pickled, CPU)
    expected = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    for name, weight in load_file(pickled / "model.safetensors").items():
        assert torch.equal(weight, expected[name])
    assert model.num_parameters > 0


def test_a_model_of_the_hub_without_safetensors_is_refused(
    pickled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the hub's cache, without a network; the error names the remedy, and no other revision is looked for."""
    snapshot = tmp_path / "models--owner--name" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0" * 40)
    for path in pickled.iterdir():
        if path.suffix != ".safetensors":
            (snapshot / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"weights of handler\.model 'owner/name'.*docs/serve.md"):
        load_model(HandlerConfig(model="owner/name"), pickled, CPU)


def test_a_response_template_of_the_configuration(tmp_path: Path) -> None:
    """For a model that comes without one. A malformed one is refused, with the key."""
    made = calling()
    template = made.tokenizer.response_template
    made.tokenizer.response_template = None
    folder = save(made, tmp_path / "model")
    assert not load_model(HandlerConfig(model=str(folder)), folder, CPU).text.knows_tools
    settings = HandlerConfig(model=str(folder), response_template=template)
    assert load_model(settings, folder, CPU).text.knows_tools
    for wrong in (
        {},
        {"fields": {"content": 3}},
        {**template, "start_anchor": 3},
        {**template, "fields": []},
    ):
        settings = HandlerConfig(model=str(folder), response_template=wrong)
        with pytest.raises(ConfigError, match=r"handler\.responseTemplate"):
            load_model(settings, folder, CPU)


def test_a_chat_template_of_the_configuration(tmp_path: Path) -> None:
    """A text, or a file of the archive. A missing or malformed one is refused, with the key and the line."""
    folder = save(gpt2(), tmp_path / "model")
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}!{% endfor %}")
    assert not load_model(HandlerConfig(model=str(folder)), tmp_path, CPU).text.has_template
    for template in ("chat.jinja", "{{ messages[-1].content }}!"):
        settings = HandlerConfig(model=str(folder), chat_template=template)
        text = load_model(settings, tmp_path, CPU).text
        extension = text.extend(
            Dialogue(Delta()), [], [text.chat_message(Said("user", ("Hi",)))], []
        )
        assert extension.rendered == "Hi!"
    for wrong, reason in (("other.jinja", "--files"), ("a\n{% if %}", "line 2")):
        settings = HandlerConfig(model=str(folder), chat_template=wrong)
        with pytest.raises(ConfigError, match=rf"handler\.chatTemplate: .*{reason}"):
            load_model(settings, tmp_path, CPU)


def test_weights_that_are_missing_are_never_made_up(tmp_path: Path) -> None:
    """The library would serve random ones in their place. Damaged ones are refused in one line, too."""
    folder = save(llama(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    settings = HandlerConfig(model=str(folder))
    with pytest.raises(ConfigError, match=r"lacks 1 weights of LlamaForCausalLM, lm_head\.weight"):
        load_model(settings, folder, CPU)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read: it has \d+ bytes"):
        load_model(settings, folder, CPU)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_limit_of_the_process_is_no_damage_of_the_weights(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a container's memory or processes."""

    def fail(*_: object, **__: object) -> None:
        raise error

    save(llama(), tmp_path)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(ConfigError, match="needs more memory, or threads"):
        load_model(HandlerConfig(model=str(tmp_path)), tmp_path, torch.device("cpu"))
