"""Models that see and hear: images and clips of one conversation, beside stock code."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.decoding import PlainDecoder
from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise, png
from tests.support.sounds import Medium, sound, wav
from tests.support.tiny.omni import qwen2_5_omni, qwen3_omni, thinker
from ts_stateful.config.schema import HandlerConfig
from ts_stateful.language.encoders.vision import Vision
from ts_stateful.language.network.load import Model, load_model
from ts_stateful.language.network.spliced import splice
from ts_stateful.language.trial import verify_media
from ts_stateful.media.load import MediaFile
from ts_stateful.protocol.chat import Chat, Said
from ts_stateful.protocol.requests import Audio, Fork, Image, Info, Open, Prompt, Rewind

BUILDERS = [qwen2_5_omni, qwen3_omni]
NEW_TOKENS = 12


def ask(model: Model, harness: Harness, session: str, *media: Medium) -> None:
    """A turn with these, which stock code repeats; they are the last ones that the harness has."""
    images, audio = [], []
    for medium in media:
        name = f"medium-{len(harness.media)}"
        harness.media[name] = medium
        if isinstance(medium, type(sound(1))):
            audio.append(Audio(url=name))
        else:
            images.append(Image(url=name))
    prompt = Prompt(
        session_id=session,
        prompt="And what is this?",
        images=tuple(images),
        audio=tuple(audio),
        max_new_tokens=NEW_TOKENS,
    )
    assert "error" not in harness.ask(prompt)
    reference_reply(model, harness, session, NEW_TOKENS)


@pytest.mark.parametrize("build", BUILDERS)
def test_pictures_and_clips_of_later_turns(
    build: Callable[[], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a rewind, an eviction, and in a fork.

    Replies of so small models hardly depend on pictures, so what the network is given is looked at, too.
    """
    model = build()
    assert model.encoder is not None
    given = list[tuple[set[int], int]]()

    def spy(network: Any, ids: list[int], stands: Tensor, maps: list[Tensor]) -> Any:
        given.append((set(torch.tensor(ids)[stands].tolist()), len(maps)))
        return splice(network, ids, stands, maps)

    monkeypatch.setattr("ts_stateful.language.network.forward.splice", spy)
    harness = Harness(model)
    harness.open("s", [noise(1), sound(1)])
    ask(model, harness, "s", sound(2, 0.9))
    ask(model, harness, "s", noise(2, 80, 30), sound(3, 1.3))
    harness.engine.table.evict_idle()
    ask(model, harness, "s")
    harness.ask(Fork(session_id="s", new_session_id="f", at_turn=3), creates_session=True)
    ask(model, harness, "f", noise(4))
    harness.ask(Rewind(session_id="f", to_turn=3))
    del harness.media["medium-5"]
    ask(model, harness, "f", sound(5))
    info = harness.ask(Info(session_id="f"))
    assert (info["images"], info["audio"]) == (2, 4)
    assert (set(model.encoder.tokens), 1 if build is qwen2_5_omni else 3) in given


@pytest.mark.parametrize("build", BUILDERS)
def test_sessions_side_by_side(build: Callable[[], Model]) -> None:
    """One sees, one hears, one does both, and one reads, in the same steps."""
    model = build()
    media: dict[str, list[Medium]] = {
        "sees": [noise(1), noise(2, 80, 30)],
        "hears": [sound(1), sound(2)],
        "both": [noise(3), sound(3, 0.7)],
        "reads": [],
    }
    harness = Harness(model)
    for name, shown in media.items():
        harness.open(name, shown)
        harness.submit(Prompt(session_id=name, prompt="What is it?", max_new_tokens=NEW_TOKENS))
        harness.steps(2)
    harness.run()
    for name, shown in media.items():
        harness.media = {str(index): medium for index, medium in enumerate(shown)}
        reference_reply(model, harness, name, NEW_TOKENS)


def test_any_order_in_a_message() -> None:
    """Their places are those that a client of OpenAI's API gave them."""
    model = qwen2_5_omni()
    harness = Harness(model)
    shown: dict[str, Medium] = {"a": sound(1), "b": noise(1), "c": sound(2), "d": noise(2, 80, 30)}
    harness.media = dict(shown)
    said = Said("user", (None, "before", None, None, "between", None))
    command = Chat(
        session_id="s",
        messages=(said,),
        images=(Image(url="b"), Image(url="d")),
        audio=(Audio(url="a"), Audio(url="c")),
        clips_at=(0, 2),
        max_new_tokens=NEW_TOKENS,
    )
    assert [medium.url for medium in command.media] == ["a", "b", "c", "d"]
    assert "error" not in harness.ask(command, creates_session=True)
    reference_reply(model, harness, "s", NEW_TOKENS)
    assert model.encoder is not None
    images = harness.engine.table.get("s").state.images
    kinds = [model.encoder.tower_of(image).kind for image in images]
    assert kinds == ["audio", "images", "audio", "images"]


@pytest.mark.parametrize("build", BUILDERS)
def test_generated_marks_are_text(build: Callable[[], Model]) -> None:
    """A model may write the tokens of images and clips, and the marks before them: what follows is served."""
    model = build()
    harness = Harness(model)
    harness.open("s", [noise(1), sound(1)])
    for token in range(3, 9):
        fields = {"logit_bias": {token: 100.0}, "ignore_eos": True, "max_new_tokens": 2}
        assert "error" not in harness.prompt("s", "Repeat.", **fields)
        assert harness.engine.table.get("s").state.log[-2:] == [token] * 2
    harness.media["later"] = noise(2)
    later = Prompt(session_id="s", prompt="?", images=(Image(url="later"),), max_new_tokens=4)
    assert "error" not in harness.ask(later)


def test_a_picture_is_no_clip() -> None:
    """A file that is named as the other kind is decoded as that, and refused."""
    harness = Harness(qwen2_5_omni())
    harness.media = {"clip": sound(1), "picture": noise(1)}
    command = Open(session_id="s", images=(Image(url="clip"),), audio=(Audio(url="picture"),))
    decoder = PlainDecoder()
    assert not MediaFile(wav(sound(1)), decoder, "images[0].url").is_audio
    assert MediaFile(png(noise(1)), decoder, "audio[0].url").is_audio
    assert "error" in harness.ask(command, creates_session=True)


@pytest.mark.parametrize(
    ("data", "is_audio"),
    [
        (wav(sound(1)), True),
        (wav(sound(1), kind="FLAC"), True),
        (png(noise(1)), False),
        (b"RIFF\x10\0\0\0WEBPVP8 ", False),
    ],
)
def test_a_part_of_a_form_is_known_by_its_beginning(data: bytes, *, is_audio: bool) -> None:
    """Forms name neither kind."""
    assert MediaFile(data, PlainDecoder(), "files[0]").is_audio is is_audio


def load(folder: Path) -> Model:
    settings = HandlerConfig(
        model=str(folder), pack_linears=False, fused_layers=False, attention_kernels=False
    )
    model = load_model(settings, folder, torch.device("cpu"))
    verify_media(model)
    return model


def test_a_thinker_alone(tmp_path: Path) -> None:
    """A checkpoint without the part that speaks is the same model."""
    alone = load(thinker(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["model_type"].endswith("_thinker")
    assert alone.fingerprint == qwen2_5_omni().fingerprint


def test_without_the_packages_for_audio_images_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning has the command that installs them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "soxr" else name)
    with caplog.at_level(logging.WARNING):
        model = load(thinker(tmp_path))
    assert isinstance(model.encoder, Vision)
    assert "pip install 'torchserve-stateful[audio]'" in caplog.text
