"""Images beside the text: what is kept of them, and which tokens attend to which."""

from __future__ import annotations

import torch

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny.beside import mllama
from ts_stateful.language.encoders.beside import VisionBeside
from ts_stateful.language.encoders.encoder import MediaInput, Shown
from ts_stateful.protocol.requests import Image, Prompt

WIDE, OTHER = noise(1, 60, 18), noise(4, 40, 40)


def test_an_image_is_encoded_once_and_its_bytes_are_counted() -> None:
    """Its keys and values are shared by all sessions, and survive an eviction of their states."""
    model = mllama()
    harness = Harness(model)
    assert model.encoder is not None
    for session in ("a", "b"):
        harness.open(session, [OTHER])
        harness.prompt(session, "What is it?", max_new_tokens=4)
    harness.engine.table.evict_idle()
    harness.prompt("a", "And now?", max_new_tokens=4)
    harness.media = {"0": OTHER}
    reference_reply(model, harness, "a", 4)
    assert model.encoder.num_encoded == 1
    (image,) = harness.engine.table.get("a").state.images
    assert model.encoder.unseen([image]) == {}
    assert image.num_bytes == 2 * 2 * 2 * 16 * 4 * 5 * 4  # layers, kinds, heads, dim, tiles, rows
    fresh = model.encoder.prepare(WIDE)
    assert model.encoder.unseen([fresh]) == {fresh: image.num_bytes}


def test_a_turn_without_room_for_its_images_fails_alone() -> None:
    """The bytes of their keys and values are part of what a turn needs."""
    model = mllama()
    one = 2 * 2 * 2 * 16 * 4 * 5 * 4
    harness = Harness(model, {"handler": {"deviceCacheBytes": one + one // 2}})
    harness.open("s", [WIDE])
    harness.media["other"] = OTHER
    shown = Prompt(session_id="s", prompt="And?", images=(Image(url="other"),), max_new_tokens=2)
    assert harness.ask(shown)["error"]["code"] == "out_of_memory"


def test_tokens_attend_to_the_last_images() -> None:
    """To all adjacent ones together; those before the first look on all of them, whole."""
    encoder = mllama().encoder
    assert isinstance(encoder, VisionBeside)
    images = [_image(rows) for rows in (5, 10, 20)]
    mask = bytearray([0, 0, 1, 0, 1, 1, 0])
    found = [
        (run.num_tokens, [rows for _, rows in run.parts], run.looks_on)
        for run in encoder._runs(Shown(images, mask, 0, 9))
    ]
    assert found == [
        (2, [20, 20, 20], True),
        (2, [5], False),
        (1, [10], False),
        (3 + 1, [10, 20], False),
    ]
    later = [run.num_tokens for run in encoder._runs(Shown(images, mask, 3, 9))]
    assert later == [1, 1, 4]


def test_states_are_named_by_the_images_that_stand_in_the_text() -> None:
    """Those of a message that no reply has read yet are not among them."""
    images = [_image(5, "a"), _image(5, "b")]
    assert VisionBeside.key_of(images, bytearray([0, 1, 0])) == ("a",)
    assert VisionBeside.key_of(images, None) == ()


def _image(rows: int, key: str = "") -> MediaInput:
    features = tuple(torch.zeros(2, 20, 16) for _ in range(4))
    return MediaInput(key, [426], torch.tensor([[1, 1, rows // 5]]), {}, features)
