"""A conversation as its user knows it, and what others in the same state were told.

Owns pictures and questions. A `Talk` is what the server's session must be; `Answers` holds that what is asked twice in the same
state is answered in the same way. Knows nothing of requests.
"""

from __future__ import annotations

import functools
import hashlib
import io
import random
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import PIL.Image
import PIL.ImageDraw

from tests.soak.tally import check
from ts_stateful.client import Session

__all__ = [
    "NUM_PICTURES",
    "QUESTIONS",
    "SYSTEMS",
    "Answers",
    "Opening",
    "Past",
    "Said",
    "Talk",
    "picture",
]

QUESTIONS: Final = (
    "How many shapes are there?",
    "What color is the circle?",
    "And the square?",
    "Which shape is yellow?",
    "What color is it?",
    "Is there a triangle?",
    "How many questions have I asked?",
)
SYSTEMS: Final = (
    None,
    None,
    "Is there a circle, a square, a triangle?",
    "Which color is it? " * 12,
)
NUM_PICTURES: Final = 12
_COLORS = ("red", "green", "blue", "yellow")


@functools.cache
def picture(number: int) -> bytes:
    """One of the pictures as a PNG file: a circle and a square."""
    rng = random.Random(f"picture {number}")
    image = PIL.Image.new("RGB", (160, 120), "white")
    drawn = PIL.ImageDraw.Draw(image)
    first, second = rng.sample(_COLORS, 2)
    left, top, size = rng.randint(4, 16), rng.randint(4, 40), rng.randint(44, 60)
    drawn.ellipse((left, top, left + size, top + size), fill=first)
    drawn.rectangle((left + 76, top, left + 76 + size, top + size), fill=second)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@dataclass(frozen=True)
class Opening:
    """What a session was opened with."""

    system: str | None = None
    pictures: tuple[int, ...] = ()
    tenant: str | None = None


@dataclass(frozen=True)
class Said:
    """A turn as it is asked for; `options` are those of the client library."""

    prompt: str
    pictures: tuple[int, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def is_reproducible(self) -> bool:
        """Whether its answer follows from the conversation: it is greedy, or it names its seed."""
        names = dict(self.options)
        return not names.get("temperature") or "seed" in names


@dataclass(frozen=True)
class Past:
    """A turn that is committed."""

    said: Said
    text: str
    finish_reason: str
    num_tokens: int


@dataclass
class Talk:
    """One conversation. `name` tells its place in the script, for the report.

    `ends_at` is the clock's time from which on it may be over, and `ended_at` that from which on it is, where it was opened
    with a life of its own.
    """

    name: str
    session: Session
    opening: Opening
    past: list[Past] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)  # what was done in it
    uploads: bool = False  # its pictures are larger than its connection takes
    ends_at: float | None = None
    ended_at: float | None = None

    @property
    def session_id(self) -> str:
        """As the server knows it."""
        return self.session.session_id

    def __str__(self) -> str:
        more = [", uploaded"] * self.uploads + [", for a while"] * (self.ends_at is not None)
        opened = f"{self.opening}{''.join(more)}, {len(self.past)} turns"
        return f"{self.name} ({self.session_id}; {opened}; {', '.join(self.acts)})"

    def state(self) -> str:
        """A hash of all that the next answer depends on."""
        parts = [repr((self.opening.system, self.opening.pictures)), *map(repr, self.past)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Answers:
    """What was answered in which state."""

    def __init__(self) -> None:
        self.num_compared = 0
        self._lock = threading.Lock()
        self._known: dict[tuple[str, Said], Past] = {}

    def check(self, state: str, past: Past) -> None:
        """Takes an answer, and compares it with the one that was given before in the same state.

        Of two that were not cancelled everything must be equal; of a cancelled one its text must be the beginning of the
        other one's.

        Raises:
            Wrong: it is not so.
        """
        if not past.said.is_reproducible:
            return
        with self._lock:
            known = self._known.get((state, past.said))
            if known is None:
                self._known[state, past.said] = past
                return
            self.num_compared += 1
            if known.finish_reason == "cancelled" and len(past.text) > len(known.text):
                self._known[state, past.said] = past
        if "cancelled" in (known.finish_reason, past.finish_reason):
            short, long = sorted((known.text, past.text), key=len)
            check(
                long.startswith(short), f"{short!r} was cancelled, but is no beginning of {long!r}"
            )
        else:
            check(known == past, f"{past} is not what was answered before in that state: {known}")
