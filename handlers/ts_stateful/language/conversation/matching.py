"""The conversation that a client sends against the one that a session holds: the common part, and what is new."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Message
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.text.dialogue import common_prefix

__all__ = ["Branch", "branch", "same_states"]


class Branch(NamedTuple):
    """The point where a conversation that was sent leaves the held one, and how it goes on.

    The opening of the session and its first `num_turns` turns stay, or nothing at all if that is None; `messages` and the
    `images` in them are new.
    """

    num_turns: int | None
    messages: tuple[Message, ...]
    images: list[MediaInput]


def branch(context: Context, sent: Sequence[Message], images: Sequence[MediaInput]) -> Branch:
    """Compare the messages that a client sends, at least one, and their images with a session.

    The last message is always new. The session's opening may be left out: its system prompt, and its images, which then are
    the first ones of the first message that is not the system's.
    """
    opening, start = context.opening, context.images[: context.opening.num_images]
    sent, images = list(sent), list(images)
    if opening.messages and sent[0].role != "system":
        sent = [*opening.messages, *sent]
    if start and not {image.key for image in start} & {image.key for image in images}:
        first = next((at for at, said in enumerate(sent) if said.role != "system"), None)
        if first is not None:
            sent[first] = sent[first].after_images(len(start))
            images = [*start, *images]
    held = [*opening.messages, *(said for turn in context.turns for said in turn.delta.messages)]
    common = _common(_units(held, context.images), _units(sent, images))
    starts = [image.key for image in images[: len(start)]] == [image.key for image in start]
    if min(common, len(sent) - 1) < len(opening.messages) or not starts:
        return Branch(None, tuple(sent), images)
    num_turns, num_messages, num_images = 0, len(opening.messages), len(start)
    for turn in context.turns:
        longer = num_messages + len(turn.delta.messages)
        if longer > min(common, len(sent) - 1):
            break
        num_turns, num_messages = num_turns + 1, longer
        num_images += turn.delta.num_images
    return Branch(num_turns, tuple(sent[num_messages:]), images[num_images:])


def same_states(
    log: Sequence[int],
    shown: Sequence[MediaInput],
    ids: Sequence[int],
    images: Sequence[MediaInput],
    media_tokens: Collection[int],
) -> int:
    """Return the number of first `ids`, with `images` in them, for which the KV states of `log`, with those `shown`, are valid.

    Two images may have the same ids, so the first one that shows something else ends the common part.
    """
    length = common_prefix(log, ids)
    pairs = zip(shown, images, strict=False)
    same = list(
        itertools.takewhile(lambda pair: pair[0] is pair[1] or pair[0].key == pair[1].key, pairs)
    )
    if len(same) == len(images):
        return length
    seen = sum(image.ids.count(token) for image, _ in same for token in media_tokens)
    places = (at for at, token in enumerate(ids) if token in media_tokens)
    return min(length, next(itertools.islice(places, seen, None), 0))


_Unit = tuple[object, tuple[str, ...]]  # a message without its images, and these


def _units(messages: Sequence[Message], images: Sequence[MediaInput]) -> Iterator[_Unit]:
    keys = iter([image.key for image in images])
    for message in messages:
        shown = tuple(itertools.islice(keys, message.num_images))
        yield message.identity, shown


def _common(held: Iterator[_Unit], sent: Iterator[_Unit]) -> int:
    pairs = zip(held, sent, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
