"""Images: a name for their content, and one run of the vision tower for all sessions that show it."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import PIL.Image
import pytest
import torch

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.tiny import MODELS, MORE_MODELS, llava, qwen2_vl
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.encoders.vision import Vision
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Image, Info, Open, Prompt

QUESTION = "What color is the circle?"


@pytest.fixture(params=[llava, qwen2_vl])
def model(request: pytest.FixtureRequest) -> Model:
    """A model with images of one size, and one with images of any."""
    made: Model = request.param()
    return made


def tower(model: Model) -> torch.nn.Module:
    base = model.network.base_model
    found: torch.nn.Module = getattr(base, "vision_tower", None) or base.visual
    return found


@pytest.fixture
def runs(model: Model) -> list[None]:
    """Grows with every run of the vision tower."""
    counted: list[None] = []
    tower(model).register_forward_hook(lambda *_: counted.append(None))
    return counted


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable the collector of cycles: unreferenced objects must be freed at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def images_of(harness: Harness, name: str) -> list[MediaInput]:
    images: list[MediaInput] = harness.engine.table.get(name).state.images
    return images


def held(harness: Harness) -> int:
    """Return the number of images in memory, encoded or not."""
    return sum(isinstance(thing, MediaInput) for thing in harness.kind._core.shared._used.values())


def test_the_same_image_again_runs_no_tower(model: Model, runs: list[None]) -> None:
    """Neither beside the session that showed it first nor after its end; and the answers are the same."""
    harness = Harness(model)
    harness.open("a", [noise(1)])
    harness.open("b", [noise(1)])
    assert images_of(harness, "a")[0] is images_of(harness, "b")[0]
    answers = [harness.prompt(name, QUESTION, max_new_tokens=8)["text"] for name in "ab"]
    harness.close("a")
    harness.close("b")
    harness.open("c", [noise(1)])
    answers.append(harness.prompt("c", QUESTION, max_new_tokens=8)["text"])
    assert len(runs) == 1
    stats = harness.engine.stats()
    assert (stats.images_encoded, stats.shared_hits) == (1, 2)
    assert len(set(answers)) == 1
    reference_reply(model, harness, "c", 8)


def test_an_image_that_a_prompt_brings_is_shared_too(model: Model, runs: list[None]) -> None:
    """With other sessions, with other turns and within one request."""
    harness = Harness(model)
    harness.media = {"x": noise(1), "y": noise(1), "z": noise(1)}
    harness.open("b", [noise(1)])
    harness.open("s")
    for urls in (("x",), ("y", "z")):
        refs = tuple(Image(url=url) for url in urls)
        harness.ask(Prompt(session_id="s", prompt=QUESTION, images=refs, max_new_tokens=4))
    assert len(set(images_of(harness, "s") + images_of(harness, "b"))) == 1
    assert len(runs) == 1
    reference_reply(model, harness, "s", 4)


def test_two_turns_with_the_same_new_image_share_it(model: Model, runs: list[None]) -> None:
    """The turn that comes first encodes it."""
    harness = Harness(model)
    harness.media = {"x": noise(1), "y": noise(1)}
    requests = [
        harness.submit(Open(session_id=name, images=(Image(url=name),)), creates_session=True)
        for name in harness.media
    ]
    harness.run()
    assert all("error" not in harness.last(request) for request in requests)
    assert images_of(harness, "x")[0] is images_of(harness, "y")[0]
    assert len(runs) == 1


@pytest.mark.parametrize(
    "other", [noise(2), noise(1, 56, 40), noise(1).transpose(PIL.Image.Transpose.ROTATE_180)]
)
def test_another_image_is_another(model: Model, runs: list[None], other: PIL.Image.Image) -> None:
    """Other pixels, another size, another order."""
    harness = Harness(model)
    harness.open("a", [noise(1)])
    harness.open("b", [other])
    assert len(runs) == 2


def test_tenants_share_nothing(model: Model, runs: list[None]) -> None:
    """The same image costs each tenant, and those without a name, one run; a tenant again costs nothing."""
    harness = Harness(model)
    tenants: list[dict[str, Any]] = [
        {},
        {"tenant": "a"},
        {"tenant": "b"},
        {"tenant": ""},
        {"tenant": 1},
        {"tenant": "1"},
    ]
    for round_ in "xy":
        for index, metadata in enumerate(tenants):
            harness.open(f"{round_}{index}", [noise(1)], metadata=metadata)
            harness.close(f"{round_}{index}")
    assert len(runs) == len(tenants)


def test_a_name_depends_on_what_makes_the_embeddings() -> None:
    """The weights, their dtype and the processor's configuration, wherever they come from; the same give the same name."""
    picture = noise(1)

    def name(change: Callable[[Any, Any], object] = lambda network, processor: None) -> str:
        model = llava()
        processor = model.text._owner
        change(model.network, processor)
        return Vision(model.network, processor).key(picture)

    assert name() == name(lambda network, _: setattr(network.config, "name_or_path", "another"))
    names = [
        name(),
        name(lambda network, _: network.lm_head.weight.data.mul_(2)),
        name(lambda network, _: network.to(torch.bfloat16)),
        name(lambda _, processor: setattr(processor.image_processor, "do_normalize", False)),
    ]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "make",
    [
        llava,
        qwen2_vl,
        *(MORE_MODELS[name] for name in ("llama4_vision", "qwen3_vl")),
        MODELS["idefics3"],
    ],
)
def test_the_bytes_of_an_image_are_known_before(make: Callable[[], Model]) -> None:
    """Each image once, however often it is shown; nothing for one that has embeddings."""
    vision = make().encoder
    assert isinstance(vision, Vision)
    images = [vision.prepare(noise(seed, size)) for seed, size in ((1, 40), (2, 90))]
    expected = vision.unseen([*images, images[0]])
    with torch.inference_mode():
        vision.encode(images[0])
    left = vision.unseen(images)
    with torch.inference_mode():
        vision.encode(images[1])
    sizes = {image: image.num_bytes for image in images}
    assert (expected, left) == (sizes, {images[1]: sizes[images[1]]})
    assert vision.unseen(images) == {}


def budget_for_one_image(model: Model) -> tuple[int, int]:
    """Return the bytes of a session's KV states with an image, and a budget for two sessions, but one image."""
    probe = Harness(model)
    probe.open("s", [noise(1)])
    kv, image = (probe.engine.table.get("s").state.device_bytes, images_of(probe, "s")[0].num_bytes)
    return kv, 2 * kv + image + image // 2


def test_room_is_made_before_an_image_is_seen(model: Model) -> None:
    """The device's budget is kept in every step, including images to be encoded."""
    _, budget = budget_for_one_image(model)
    harness = Harness(model, {"handler": {"deviceCacheBytes": budget}})
    harness.open("old", [noise(2)])
    harness.media["new"] = noise(3)
    request = harness.submit(
        Open(session_id="new", images=(Image(url="new"),)), creates_session=True
    )
    harness.pump()
    while harness.engine.busy:
        harness.steps(1)
        assert harness.engine.table.device_bytes <= budget
    harness.run()
    assert "error" not in harness.last(request)


def test_room_for_an_image_is_kept_until_it_is_seen(model: Model) -> None:
    """A request that comes in the meantime is rejected with a retryable error, instead of exceeding the budget."""
    kv, budget = budget_for_one_image(model)
    harness = Harness(model, {"handler": {"deviceCacheBytes": budget}})
    harness.media |= {"first": noise(2), "second": noise(3)}
    requests = [
        harness.submit(Open(session_id=name, images=(Image(url=name),)), creates_session=True)
        for name in ("first", "second")
    ]
    harness.run()
    first, second = map(harness.last, requests)
    assert "error" not in first
    assert second["error"]["code"] == "out_of_memory"
    assert harness.engine.table.device_bytes <= budget
    assert harness.engine.table.get("first").state.device_bytes <= kv


def test_shared_embeddings_count_once(model: Model) -> None:
    """In the total; a session's own statistics include all that it uses."""
    harness = Harness(model)
    for name in "ab":
        harness.open(name, [noise(1), noise(1), noise(2)])
    image_bytes = sum(image.num_bytes for image in set(images_of(harness, "a")))
    kv_bytes = [session.state.kv.num_bytes for session in harness.engine.table]
    assert harness.engine.stats().device_bytes == sum(kv_bytes) + image_bytes
    assert harness.engine.stats().shared_bytes == image_bytes > 0
    infos = [harness.ask(Info(session_id=name)) for name in "ba"]
    assert [info["device_bytes"] for info in infos] == [size + image_bytes for size in kv_bytes]
    for name in "ab":
        harness.close(name)
    assert harness.engine.table.device_bytes == image_bytes


def test_without_a_budget_an_image_lives_as_long_as_its_sessions(
    model: Model, runs: list[None]
) -> None:
    """`sharedCacheBytes: 0` keeps nothing beside them."""
    harness = Harness(model, {"handler": {"sharedCacheBytes": 0}})
    for name in "ab":
        harness.open(name, [noise(1)])
    harness.close("a")
    harness.open("c", [noise(1)])
    assert len(runs) == 1
    for name in "bc":
        harness.close(name)
    assert harness.engine.table.device_bytes == 0
    harness.open("d", [noise(1)])
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError("no"), "internal"), (MemoryError(), "out_of_memory")]
)
@pytest.mark.usefixtures("uncollected")
def test_an_image_that_cannot_be_encoded_leaves_nothing_behind(
    model: Model, error: Exception, code: str
) -> None:
    """Its session fails; the next one has it encoded normally."""
    harness = Harness(model)

    def fail(*_: object) -> None:
        raise error

    hook = tower(model).register_forward_pre_hook(fail)
    refused = harness.open("s", [noise(1)])
    assert refused["error"]["code"] == code
    hook.remove()
    error.__traceback__ = None  # its frames refer to their objects
    assert harness.engine.stats().device_bytes == 0
    assert held(harness) == 0
    assert "error" not in harness.open("s", [noise(1)])
    harness.prompt("s", QUESTION, max_new_tokens=8)
    reference_reply(model, harness, "s", 8)


@pytest.mark.usefixtures("uncollected")
def test_a_refused_open_holds_no_image(model: Model, runs: list[None]) -> None:
    """Not even one that was rejected because its image is too long."""
    harness = Harness(dataclasses.replace(model, context_tokens=3))
    refused = harness.open("s", [noise(1)])
    assert (refused["error"]["code"], refused["error"]["field"]) == ("context_too_long", "images")
    assert held(harness) == 0
    assert runs == []


@pytest.mark.usefixtures("uncollected")
def test_a_closed_session_holds_no_image(model: Model) -> None:
    """Unless it is kept for the next session, it is freed at once, also after a turn whose images were rejected."""
    harness = Harness(model, {"handler": {"sharedCacheBytes": 0}})
    harness.open("s", [noise(1)])
    harness.prompt("s", QUESTION, max_new_tokens=4)
    missing = Prompt(session_id="s", prompt=QUESTION, images=(Image(url="missing"),))
    assert harness.ask(missing)["error"]["code"] == "internal"
    image = weakref.ref(images_of(harness, "s")[0])
    assert image() is not None
    harness.close("s")
    assert image() is None


def test_a_model_without_a_tower_is_refused() -> None:
    """Without precomputed embeddings, images cannot be kept."""
    model = llava()
    with pytest.raises(ConfigError, match="image embeddings"):
        Vision(model.network.base_model.language_model, model.text._owner)
