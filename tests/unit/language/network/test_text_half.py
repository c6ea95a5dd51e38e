"""The text half of vision-language models: `handler.vision: false`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import looking_ahead, merging, seeing, unserved
from tests.support.tiny.published import Checkpoint, write
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.network.load import Model, load_model


def text_half(folder: Path) -> Model:
    """The model of a folder, without its images."""
    settings = HandlerConfig(model=str(folder), vision=False)
    return load_model(settings, folder, torch.device("cpu"))


@pytest.mark.parametrize(
    "build",
    [
        looking_ahead._gemma3,
        looking_ahead._gemma4,
        seeing._llava,
        merging._qwen2_vl,
        unserved.idefics2,
        unserved.ovis2,
    ],
    ids=lambda build: build.__name__.strip("_"),
)
def test_texts_are_exact_and_images_are_refused(
    build: Callable[[], Checkpoint], tmp_path: Path
) -> None:
    """Of models whose images are served, and of others."""
    model = text_half(write(build(), tmp_path))
    harness = Harness(model)
    assert "error" in harness.open("seeing", [noise(1)])
    assert "error" not in harness.open("s")
    for question in ("What color is the circle?", "And the square?"):
        assert "error" not in harness.prompt("s", question, max_new_tokens=16)
        reference_reply(model, harness, "s", 16)
        assert question in harness.engine.table.get("s").state.dialogue.rendered


def test_a_template_of_the_processor_is_used(tmp_path: Path) -> None:
    """Also one that shows the parts of messages alone, and is in the file of older checkpoints."""
    checkpoint = seeing._llava()
    template = (
        "{% for m in messages %}{% for c in m.content %}{{ c.text }}|{% endfor %}{% endfor %}"
    )
    checkpoint.tokenizer.chat_template = None
    folder = write(checkpoint, tmp_path)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    harness = Harness(text_half(folder))
    harness.open("s")
    harness.prompt("s", "Which one?", max_new_tokens=2)
    assert harness.engine.table.get("s").state.dialogue.rendered == "Which one?|"
