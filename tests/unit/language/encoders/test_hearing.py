"""Models that hear: clips of a conversation, beside stock code."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.sounds import sound
from tests.support.tiny import llama, llava
from tests.support.tiny.hearing import audio_flamingo3, glm_asr, qwen2_audio, voxtral
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.encoders.hearing import Hearing
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Audio, Fork, Image, Info, Open, Prompt, Rewind

BUILDERS = [audio_flamingo3, glm_asr, qwen2_audio, voxtral]


@pytest.mark.parametrize("build", BUILDERS)
def test_clips_of_later_turns_are_heard_too(build: Callable[[], Model]) -> None:
    """Also beside a session that hears another one, in the same steps."""
    model = build()
    harness = Harness(model)
    harness.open("s", [sound(1)])
    harness.media["later"] = sound(2, 0.9)
    harness.open("t")
    harness.media["other"] = sound(3)
    asked = [
        harness.submit(Prompt(session_id=name, prompt="And this?", audio=(Audio(url=clip),)))
        for name, clip in (("s", "later"), ("t", "other"))
    ]
    harness.run()
    assert all("error" not in harness.last(each) for each in asked)
    reference_reply(model, harness, "s", 256)
    assert model.encoder is not None
    assert model.encoder.num_encoded == 3


def test_a_clip_is_encoded_once_for_all_sessions() -> None:
    """Also after a fork and a rewind; `info` counts it."""
    model = qwen2_audio()
    harness = Harness(model)
    assert model.encoder is not None
    before = model.encoder.num_encoded
    for name in ("a", "b"):
        harness.open(name, [sound(7)])
        harness.prompt(name, "What is it?", max_new_tokens=4)
    harness.ask(Fork(session_id="a", new_session_id="c"), creates_session=True)
    harness.ask(Rewind(session_id="c", to_turn=0))
    harness.prompt("c", "Who speaks?", max_new_tokens=4)
    reference_reply(model, harness, "c", 4)
    assert model.encoder.num_encoded == before + 1
    info = harness.ask(Info(session_id="c"))
    assert (info["audio"], info["images"]) == (1, 0)


@pytest.mark.parametrize("build", [audio_flamingo3, glm_asr])
def test_a_clip_of_several_windows_is_heard_whole(build: Callable[[], Model]) -> None:
    """Beside a short one, where the processor cuts it."""
    model = build()
    harness = Harness(model)
    harness.open("s", [sound(1, 5.3), sound(2)])
    harness.prompt("s", "What is it?", max_new_tokens=8)
    reference_reply(model, harness, "s", 8)


@pytest.mark.parametrize(
    ("build", "fields", "named"),
    [
        (qwen2_audio, {"images": (Image(url="x"),)}, "images"),
        (llava, {"audio": (Audio(url="x"),)}, "audio"),
        (llama, {"audio": (Audio(url="x"),)}, "audio"),
    ],
)
def test_media_of_another_kind_are_refused(
    build: Callable[[], Model], fields: dict[str, object], named: str
) -> None:
    """The error names the field."""
    harness = Harness(build())
    harness.media["x"] = noise(1)
    document = harness.ask(Open(session_id="s", **fields), creates_session=True)  # type: ignore[arg-type]
    assert document["error"]["code"] == "invalid_request"
    assert document["error"]["field"] == named


def test_a_clip_that_the_model_generates_is_none() -> None:
    """A token of audio that no clip stands for is embedded as the model embeds it."""
    model = qwen2_audio()
    harness = Harness(model)
    harness.open("s", [sound(1)])
    assert model.encoder is not None
    (token,) = model.encoder.tokens
    bias = {token: 100.0}
    harness.prompt("s", "Repeat.", max_new_tokens=3, logit_bias=bias, ignore_eos=True)
    log = harness.engine.table.get("s").state.log
    assert log[-3:] == [token] * 3
    assert "error" not in harness.prompt("s", "And now?", max_new_tokens=4)


def test_a_clip_is_named_by_its_samples_and_the_model() -> None:
    """As an image is by its pixels."""
    one, other = qwen2_audio().encoder, glm_asr().encoder
    assert isinstance(one, Hearing)
    assert isinstance(other, Hearing)
    clip = sound(1)
    names = {one.key(clip), other.key(clip), one.key(sound(2)), one.key(clip, "tenant")}
    assert len(names) == 4
    assert one.key(clip) == one.key(clip.copy())


def test_the_bytes_of_a_clip_are_known_before() -> None:
    """As for an image."""
    hearing = qwen2_audio().encoder
    assert isinstance(hearing, Hearing)
    clip = hearing.prepare(sound(1))
    expected = hearing.unseen([clip])
    with torch.inference_mode():
        hearing.encode(clip)
    assert expected == {clip: clip.num_bytes}
    assert hearing.unseen([clip]) == {}


def test_without_its_packages_no_model_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs them."""
    model = qwen2_audio()
    assert model.encoder is not None
    processor = model.encoder.towers[0]._processor
    monkeypatch.setitem(sys.modules, "soxr", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "soxr" else name)
    with pytest.raises(ConfigError, match=r"audio needs soxr.*\[audio\]"):
        Hearing(model.network, processor)


def test_an_audio_processor_without_a_length_is_refused() -> None:
    """Nobody could say how long a clip may be."""
    model = qwen2_audio()
    assert model.encoder is not None

    class Endless:
        audio_token = "<|AUDIO|>"

    with pytest.raises(ConfigError, match="how long a clip"):
        Hearing(model.network, Endless())


def test_a_longer_clip_has_more_tokens() -> None:
    """Silence up to the length that the tower reads is not part of a clip."""
    hearing = qwen2_audio().encoder
    assert hearing is not None
    lengths = [len(hearing.prepare(sound(1, seconds)).ids) for seconds in (0.5, 1.0, 1.9)]
    assert lengths == [12, 25, 47]
