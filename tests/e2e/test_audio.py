"""A model that hears, in the hub's own layout, behind both fronts: clips in every form, exact beside stock `generate`."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.e2e.server import profile_server
from tests.e2e.speak import DEADLINE_S, HEADER, SCENE
from tests.e2e.web_page import chat_page, launch_options, opened
from tests.support.sounds import RATE, sound, wav, wav_base64
from tests.support.tiny import hearing
from tests.support.tiny.published import write
from ts_stateful.client import connect
from ts_stateful.protocol.errors import InvalidRequest, MediaInvalid, MediaTooLarge
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

CLIPS = [sound(1), sound(2, 0.8)]
QUESTION = "Which one is yellow?"
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Qwen2-Audio of random weights, packed into an archive. Other tests send both fronts the same kinds of requests."""
    folder = tmp_path_factory.mktemp("audio")
    model = write(hearing._qwen2_audio(), folder / "model")
    with profile_server(Profile.ASGI, folder, name="audio", model=model) as server:
        yield server


@pytest.fixture(scope="module")
def expected() -> str:
    """The reply of stock `generate` to the stock processor's inputs."""
    model = hearing.qwen2_audio()
    assert model.encoder is not None
    content = [{"type": "audio"} for _ in CLIPS]
    text = model.encoder.towers[0]._processor.apply_chat_template(
        [{"role": "user", "content": [*content, {"type": "text", "text": QUESTION}]}],
        add_generation_prompt=True,
        tokenize=False,
    )
    inputs = model.encoder.process(text, CLIPS)
    config = model.network.config.get_text_config(decoder=True)
    config._attn_implementation = model.forward.stock_attention
    ids = model.network.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    reply = ids[0, inputs["input_ids"].shape[1] :]
    return str(model.tokenizer.decode(reply, skip_special_tokens=True))


def test_the_client_library(server: LocalServer, expected: str) -> None:
    """Clips of `open`, over both transports; the next turn computes only what is new, a clip of its own included."""
    for url in (server.http_url, server.grpc_url):
        with (
            connect(url, model="chat") as client,
            client.open(audio=[wav(clip) for clip in CLIPS]) as session,
        ):
            limits = client.hello().limits
            assert (limits.images, limits.audio, limits.audio_s) == (0, 8, 2.0)
            first = session.prompt(QUESTION, max_new_tokens=NEW_TOKENS)
            assert first.result() == expected
            again = session.prompt(
                QUESTION, audio=[wav(sound(3), kind="FLAC")], max_new_tokens=NEW_TOKENS
            )
            again.result()
            assert first.usage is not None
            assert again.usage is not None
            cached = again.usage.prompt_tokens_details.cached_tokens
            assert cached >= first.usage.prompt_tokens
            info = session.info()
            assert (info.audio, info.images) == (3, 0)


def test_uploads_and_forms(server: LocalServer, expected: str) -> None:
    """A file in parts, and one beside the JSON."""
    with httpx.Client(base_url=server.http_url, timeout=DEADLINE_S, trust_env=False) as http:
        opened = http.post("/predictions/chat", json={"type": "open"}).json()
        headers = {HEADER: opened["session_id"]}
        data = wav(CLIPS[0])
        sha256 = hashlib.sha256(data).hexdigest()
        upload = {"type": "upload", "sha256": sha256, "base64": base64.b64encode(data).decode()}
        assert http.post("/predictions/chat", json=upload, headers=headers).json()["complete"]
        asked = {"prompt": QUESTION, "audio": [{"upload": sha256}], "max_new_tokens": NEW_TOKENS}
        form: Any = {
            "data": (None, json.dumps(asked)),
            "clip": ("a.wav", wav(CLIPS[1]), "audio/wav"),
        }
        answer = http.post("/predictions/chat", files=form, headers=headers).json()
        assert answer["text"] == expected
        http.post("/predictions/chat", json={"type": "close"}, headers=headers)


def test_errors_name_the_clip(server: LocalServer) -> None:
    """What is no clip, too long, or of another kind; the session goes on."""
    with connect(server.http_url, model="chat") as client, client.open() as session:
        for files, kind, message in (
            ([b"no sound"], MediaInvalid, "send one of WAV, FLAC"),
            ([wav(sound(1)), wav(sound(1, 2.5))], MediaTooLarge, "longer than 2 s"),
        ):
            with pytest.raises(kind, match=message) as refused:
                session.ask(QUESTION, audio=files)
            assert refused.value.field == f"audio[{len(files) - 1}].base64"
        with pytest.raises(InvalidRequest, match="takes no images"):
            session.ask(QUESTION, images=[b"x"])
        assert session.ask(QUESTION, audio=[wav(sound(1))], max_new_tokens=4) is not None


def test_openai_sends_clips_with_every_request(server: LocalServer, expected: str) -> None:
    """`input_audio`; the dialogue is not computed again, and an error names the part."""
    url = f"{server.http_url}/predictions/chat/1.0/v1"
    with OpenAI(base_url=url, api_key="none", timeout=DEADLINE_S, max_retries=0) as client:
        content: Any = [
            {"type": "input_audio", "input_audio": {"data": wav_base64(clip), "format": "wav"}}
            for clip in CLIPS
        ]
        messages: Any = [
            {"role": "user", "content": [*content, {"type": "text", "text": QUESTION}]}
        ]
        first = client.chat.completions.create(
            model="chat",
            messages=messages,
            max_tokens=NEW_TOKENS,
        )
        assert first.choices[0].message.content == expected
        messages += [
            {"role": "assistant", "content": expected},
            {"role": "user", "content": "Again?"},
        ]
        second = client.chat.completions.create(
            model="chat",
            messages=messages,
            max_tokens=NEW_TOKENS,
        )
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        assert second.usage.prompt_tokens_details.cached_tokens
        content[1]["input_audio"] = {"data": "AAAA", "format": "wav"}
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model="chat",
                messages=[{"role": "user", "content": content}],
            )
        assert refused.value.param == "messages[0].content[1].input_audio.data"


def test_clips_are_not_counted_as_json(server: LocalServer) -> None:
    """`handler.limits.maxJsonBytes` is for what is beside them."""
    big = base64.b64encode(wav(sound(5, 22.0), rate=192_000)).decode()  # of 1.8 s
    clip = {"type": "input_audio", "input_audio": {"data": big, "format": "wav"}}
    asked = {
        "model": "chat",
        "messages": [{"role": "user", "content": [clip, clip]}],
        "max_tokens": 2,
    }
    assert len(json.dumps(asked)) > 1_500_000
    with httpx.Client(base_url=server.http_url, timeout=DEADLINE_S, trust_env=False) as http:
        answer = http.post("/predictions/chat/1.0/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text


def test_the_chat_page(server: LocalServer, tmp_path: Path) -> None:
    """In a real browser: clips are uploaded and played, and computed once. A picture is refused in words."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs chromium in the PATH")
    pytest.importorskip("gradio", reason="needs the extra `web`")
    playwright = pytest.importorskip("playwright.sync_api")
    files = [tmp_path / "question.wav", tmp_path / "answer.flac"]
    files[0].write_bytes(wav(CLIPS[0]))
    files[1].write_bytes(wav(CLIPS[1], kind="FLAC"))
    with (
        chat_page(server.http_url, "--max-new-tokens", "8", name="web-audio") as url,
        playwright.sync_playwright() as tools,
        contextlib.closing(tools.chromium.launch(**launch_options(chromium))) as browser,
        opened(browser, url) as tab,
    ):
        tab.upload(*files)
        tab.type(QUESTION)
        tab.turns().first.wait_for()
        players = tab.page.locator("ul.sent audio")
        assert players.count() == 2
        for player, clip in zip(players.all(), CLIPS, strict=True):
            player.evaluate("one => one.readyState || new Promise(r => one.onloadedmetadata = r)")
            assert player.evaluate("one => one.duration") == pytest.approx(
                len(clip) / RATE, abs=0.01
            )
        tab.type(QUESTION)
        tab.turns().nth(1).wait_for()
        first, second = (
            int(text.split()[0]) for text in tab.turns().locator(".bar-text").all_inner_texts()
        )
        assert first < 10 < second
        tab.page.locator("input[type=file]").set_input_files([SCENE])
        tab.page.locator(".error", has_text="takes no images").wait_for()
