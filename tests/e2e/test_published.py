"""Vision-language checkpoints in the hub's own layout: packed, served together, exact beside stock `generate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.server import START_TIMEOUT_S, log_path, pack
from tests.support.pictures import noise, png
from tests.support.ports import free_ports
from tests.support.tiny import MODELS, MORE_MODELS, merging, seeing
from tests.support.tiny.published import write
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.client import connect
from ts_stateful.language.network.load import Model

# Their processors need torchvision, for videos.
CHECKPOINTS = {
    "mistral3": seeing._mistral3,
    "qwen2_5_vl": merging._qwen2_5_vl,
    "smolvlm": seeing._smolvlm,
}
PICTURES = [noise(1), noise(2, 80, 30)]
QUESTION = "Which one is yellow?"
NEW_TOKENS = 24


@pytest.mark.timeout(2 * START_TIMEOUT_S)
def test_published_checkpoints_are_served(tmp_path: Path) -> None:
    """The first turn gets what stock processor and stock `generate` make of it; the second computes only what is new."""
    archives = []
    for name, build in CHECKPOINTS.items():
        folder = write(build(), tmp_path / f"{name}-checkpoint")
        archives.append(str(pack(tmp_path / name, "--name", name, model=folder)))
    settings = AsgiServerSettings(
        tuple(archives),
        ports=free_ports(),
        log_file=log_path("published"),
        start_timeout_s=START_TIMEOUT_S,
    )
    with AsgiServer(settings) as server:
        for name in CHECKPOINTS:
            with (
                connect(server.http_url, model=name) as client,
                client.open(images=[png(picture) for picture in PICTURES]) as session,
            ):
                first = session.prompt(QUESTION, max_new_tokens=NEW_TOKENS)
                assert first.result() == stock_text({**MODELS, **MORE_MODELS}[name]())
                again = session.prompt(QUESTION, max_new_tokens=NEW_TOKENS)
                again.result()
                assert first.usage is not None
                assert again.usage is not None
                assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def stock_text(model: Model) -> str:
    """The reply of stock `generate` to the stock processor's inputs."""
    assert model.encoder is not None
    content = [{"type": "image", "image": picture} for picture in PICTURES]
    inputs = model.encoder.towers[0]._processor.apply_chat_template(
        [{"role": "user", "content": [*content, {"type": "text", "text": QUESTION}]}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    config = model.network.config.get_text_config(decoder=True)
    config._attn_implementation = model.forward.stock_attention
    ids = model.network.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    reply = ids[0, inputs["input_ids"].shape[1] :]
    text: str = model.tokenizer.decode(reply, skip_special_tokens=True)
    return text
