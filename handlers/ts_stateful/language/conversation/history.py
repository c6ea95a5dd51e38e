"""The history of a session: messages, and the changes that turns made to its log of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ts_stateful.protocol.answers import Timing, Usage
from ts_stateful.protocol.chat import Parsing
from ts_stateful.protocol.logprobs import TokenLogprob

__all__ = ["Delta", "Message", "Turn"]


class Message(NamedTuple):
    """A message: `text` with its control tokens marked, after `num_images` images.

    For another order, `parts` has the texts, and a None for each image. `fields` is the JSON object of what else chat templates
    get: calls of tools, or the id of the call that a result belongs to. A reply may have `reasoning`, which makes no other
    conversation of one. `generated` is its whole text as the model wrote it, if that is not `text`.
    """

    role: str
    text: str
    num_images: int = 0
    parts: tuple[str | None, ...] = ()
    fields: str = ""
    reasoning: str = ""
    generated: str = ""

    @property
    def identity(self) -> tuple[str, tuple[str | None, ...], str]:
        """The same for messages that say the same, images left out."""
        return self.role, self.layout, self.fields

    @property
    def layout(self) -> tuple[str | None, ...]:
        """Texts, and a None for each image, in their order."""
        return self.parts or (None,) * self.num_images + (self.text,)

    def after_images(self, num_images: int) -> Message:
        """Return the same message after so many more images."""
        parts = (None,) * num_images + self.layout
        return self._replace(num_images=self.num_images + num_images, parts=parts)


_OBJECTS: dict[int, int] = {}  # of each token id that a session has


@dataclass(frozen=True, slots=True)
class Delta:
    """The change that a turn, or the opening of a session, makes to the history; a history is its deltas in order.

    Of the log of token ids the first `keep` stayed and `ids` followed. Of the rendered conversation, which ends where the last
    reply begins, the first `keep_chars` characters stayed and `rendered` followed. `num_images` images were new.
    """

    keep: int = 0
    ids: tuple[int, ...] = ()
    keep_chars: int = 0
    rendered: str = ""
    messages: tuple[Message, ...] = ()
    num_images: int = 0
    has_reply: bool = True  # False for a turn that only adds messages

    def __post_init__(self) -> None:
        """Let equal ids be one object: a tokenizer makes one of 32 bytes for each token, of which sessions keep millions."""
        object.__setattr__(self, "ids", tuple(map(_OBJECTS.setdefault, self.ids, self.ids)))


@dataclass(frozen=True, slots=True)
class Turn:
    """A committed turn: all that a replayed answer needs and, in `delta`, all that the history needs."""

    number: int
    text: str
    finish_reason: str
    usage: Usage
    timing: Timing
    delta: Delta
    origin: str = ""  # id of the request
    logprobs: tuple[TokenLogprob, ...] = ()  # of the reply's tokens, if they were asked for
    parsing: Parsing | None = None  # of the reply, whose `text` has all that it wrote
    note: str = ""  # of the client's protocol
    copied: bool = False  # into a branch: it is no response of this session
