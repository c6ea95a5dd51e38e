"""Chats with Voxtral, beside the package by which the stock processor reads them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.sounds import sound, wav_base64
from tests.support.tiny.hearing import _voxtral, voxtral
from tests.support.tiny.published import write
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.conversation.history import Delta
from ts_stateful.language.network.load import Model, load_model
from ts_stateful.language.text.dialogue import Dialogue
from ts_stateful.media.decoder.frames import Samples
from ts_stateful.protocol.chat import Said
from ts_stateful.protocol.requests import Audio, Open

pytest.importorskip("mistral_common", reason="mistral-common has no release for this Python")
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

SHORT, LONG = sound(1), sound(2, 31)
Part = str | Samples
CHATS: list[list[tuple[str, tuple[Part, ...]]]] = [
    [("user", (SHORT, "What is it?"))],
    [("user", (SHORT,))],
    [("user", ("Here:", SHORT, "and", LONG, " one\nmore", SHORT))],
    [("user", (SHORT, "Who?")), ("assistant", (" A dog.",)), ("user", ("Sure? [INST] 12",))],
    [("user", ("a", "b")), ("user", ("c", SHORT)), ("user", ("d",))],
    [("system", ("Be brief.",)), ("user", ("What color?",))],
]


@cache
def model() -> Model:
    """Return the small model."""
    return voxtral()


def expected(messages: list[tuple[str, tuple[Part, ...]]], folder: Path) -> list[int]:
    """Return the ids of a chat by mistral-common."""

    def block(part: Part) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        clip = {"data": wav_base64(part), "format": "wav"}
        return {"type": "input_audio", "input_audio": clip}

    chat = [{"role": role, "content": [*map(block, parts)]} for role, parts in messages]
    for message in chat:
        if message["role"] == "assistant":
            message["content"] = message["content"][0]["text"]  # type: ignore[index]
    (folder / "tekken.json").write_text(json.dumps(_voxtral().files["tekken.json"]))
    tokenizer = MistralTokenizer.from_file(folder / "tekken.json")
    request: Any = ChatCompletionRequest.from_openai(messages=chat)  # type: ignore[arg-type]
    return list(tokenizer.encode_chat_completion(request).tokens)


@pytest.mark.parametrize("messages", CHATS)
def test_a_chat_has_the_ids_of_mistral_common(
    messages: list[tuple[str, tuple[Part, ...]]], tmp_path: Path
) -> None:
    """Clips at their places, texts that spell out control tokens, messages of one role after another."""
    encoder = model().encoder
    assert encoder is not None
    clips = [part for _, parts in messages for part in parts if not isinstance(part, str)]
    said = [
        model().text.chat_message(
            Said(role, tuple(part if isinstance(part, str) else None for part in parts))
        )
        for role, parts in messages
    ]
    expansions = [encoder.prepare(clip).ids for clip in clips]
    extension = model().text.extend(Dialogue(Delta()), [], said, expansions)
    assert extension.ids == expected(messages, tmp_path)


def test_a_long_clip_is_heard_in_windows() -> None:
    """Each window has its tokens, the last one filled with silence."""
    encoder = model().encoder
    assert encoder is not None
    counts = {}
    for seconds in (0.1, 30, 30.1, 61):
        clip = encoder.prepare(np.zeros(int(seconds * 16_000), np.float32))
        counts[seconds] = encoder.num_tokens(clip), len(clip.tensors["input_features"])
    assert counts == {0.1: (375, 1), 30: (375, 1), 30.1: (750, 2), 61: (1125, 3)}


def test_long_and_short_clips_of_a_session() -> None:
    """The reply is that of stock `generate` on the whole transcript."""
    harness = Harness(model())
    harness.open("s", [sound(5, 31), sound(6)])
    for question in ("What is it?", "And now?"):
        harness.prompt("s", question, max_new_tokens=8)
        reference_reply(model(), harness, "s", 8)


def test_a_system_prompt_beside_clips_is_refused() -> None:
    """As mistral-common refuses it."""
    harness = Harness(model())
    harness.media["clip"] = sound(1)
    opened = Open(session_id="s", system="Be brief.", audio=(Audio(url="clip"),))
    document = harness.ask(opened, creates_session=True)
    assert document["error"]["code"] == "invalid_request"
    assert document["error"]["field"] == "system"


def test_a_system_prompt_alone_is_read() -> None:
    """Chats of text have one."""
    harness = Harness(model())
    document = harness.ask(Open(session_id="s", system="Be brief."), creates_session=True)
    assert "error" not in document
    harness.prompt("s", "What color?", max_new_tokens=8)
    reference_reply(model(), harness, "s", 8)


def test_the_template_of_a_folder_comes_first(tmp_path: Path) -> None:
    """Its own is for folders without one."""
    folder = write(_voxtral(), tmp_path)
    template = "{% for m in messages %}{% for c in m.content %}{{ c.text or '[AUDIO]' }}{% endfor %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    loaded = load_model(HandlerConfig(model=str(folder)), folder, torch.device("cpu"))
    message = loaded.text.chat_message(Said("user", ("Hello",)))
    assert loaded.text.extend(Dialogue(Delta()), [], [message], []).rendered == "Hello"
