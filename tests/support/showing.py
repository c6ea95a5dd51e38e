"""Conversations that show pictures, each turn of which must be what stock code makes of the whole transcript."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import Picture
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Cancel, Image, Prompt

__all__ = ["NEW_TOKENS", "check", "check_lost_turns", "check_new_images", "log_of", "show"]

NEW_TOKENS = 12


def show(harness: Harness, picture: Picture) -> Image:
    """Return a picture as requests name it."""
    name = f"shown-{len(harness.media)}"
    harness.media[name] = picture
    return Image(url=name)


def log_of(harness: Harness, session: str) -> list[int]:
    """Return the ids of a session."""
    log: list[int] = harness.engine.table.get(session).state.log
    return log


def check(
    model: Model,
    harness: Harness,
    session: str,
    pictures: Sequence[Picture],
    question: str = "What color is it?",
    shown: Sequence[Picture] = (),
) -> list[int]:
    """Ask in a session that has `pictures`, with those that are `shown` now; return the reply's ids, which must be stock's."""
    images = tuple(show(harness, picture) for picture in shown)
    document = harness.prompt(session, question, images=images, max_new_tokens=NEW_TOKENS)
    assert "error" not in document, document
    harness.media = {str(at): picture for at, picture in enumerate([*pictures, *shown])}
    reference_reply(model, harness, session, NEW_TOKENS)
    return log_of(harness, session)[document["usage"]["prompt_tokens"] :]


def check_new_images(model: Model, one: Picture, others: Sequence[Picture]) -> Harness:
    """Show one picture after a text, and others after more texts; return the engine with the session `s`."""
    harness = Harness(model)
    harness.open("s")
    check(model, harness, "s", [])
    check(model, harness, "s", [], "And now?", [one])
    check(model, harness, "s", [one], "Sure?")
    check(model, harness, "s", [one], "And these?", others)
    check(model, harness, "s", [one, *others], "Which one is blue?")
    return harness


def check_lost_turns(model: Model, opened: Picture, lost: Picture, cut: Picture) -> None:
    """Let a turn be rolled back, and another one be cancelled: of what they show, only the second picture stays."""
    harness = Harness(model)
    harness.open("s", [opened])
    check(model, harness, "s", [opened])
    images = (show(harness, lost),)
    request = harness.submit(
        Prompt(session_id="s", prompt="Never mind.", images=images, ignore_eos=True)
    )
    harness.steps(9)
    harness.engine.drop(request)
    harness.clock.now += 10.1
    harness.engine.tick()
    harness.pump()
    check(model, harness, "s", [opened], "Sure?")
    images = (show(harness, cut),)
    harness.submit(Prompt(session_id="s", prompt="Go on.", images=images, ignore_eos=True))
    harness.steps(20)
    assert harness.ask(Cancel(session_id="s"))["cancelled"]
    check(model, harness, "s", [opened, cut], "And?")
