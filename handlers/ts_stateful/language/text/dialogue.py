"""The text of a session, and the change that a turn makes to its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from ts_stateful.language.conversation.history import Delta

__all__ = ["Dialogue", "Extension", "appended", "common_prefix"]

T = TypeVar("T")


class Dialogue:
    """The text of a session: its messages, and the text rendered for its last turn, whose ids are in the log."""

    def __init__(self, opening: Delta) -> None:
        self.messages = list(opening.messages)
        self.opening_images = opening.num_images  # the first user message will begin with them
        self.rendered = ""  # up to the beginning of the last reply
        # The last one as it was rendered, its control tokens marked, or as it was generated.
        self.reply = ""
        self.num_turns = 0
        self.unread_images = 0  # in messages after the last reply

    @property
    def waiting_images(self) -> int:
        """The images of `open`, until a user message has begun with them."""
        return 0 if self.num_turns else self.opening_images

    def apply(self, turn: Delta) -> None:
        """Apply the next turn."""
        self.messages += turn.messages
        self.num_turns += 1
        if not turn.has_reply:
            self.unread_images += turn.num_images
            return
        self.rendered = self.rendered[: turn.keep_chars] + turn.rendered
        self.reply = turn.messages[-1].generated or turn.messages[-1].text
        self.unread_images = 0


class Extension(NamedTuple):
    """The change from a log to a turn's context: the first `keep` ids stay, `ids` follow; `rendered` is its text."""

    keep: int
    ids: list[int]
    rendered: str


def appended(dialogue: Dialogue, rendered: str) -> str | None:
    """Return the text that a template put after the last reply, or None if it changed what came before.

    White space around the reply does not count. Many templates trim it, or put a blank before it that tokenizers merge into the
    reply's first token.
    """
    if not dialogue.rendered or not rendered.startswith(dialogue.rendered):
        return None
    tail, reply = rendered[len(dialogue.rendered) :], dialogue.reply
    if tail.startswith(reply):
        return tail[len(reply) :]
    tail, core = tail.lstrip(), reply.strip()
    if not tail.startswith(core):
        return None
    blank = reply[len(reply.rstrip()) :]
    return tail[len(core) :].removeprefix(blank)


def common_prefix(a: Sequence[T], b: Sequence[T]) -> int:
    """Return the number of ids or characters that `a` and `b` have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is a hundred times faster than items one by one
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
