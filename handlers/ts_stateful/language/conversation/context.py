"""The state of a session of a language model.

The log of token ids is the session; the KV states are a cache of it that may be shorter, or empty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ts_stateful.language.conversation.drafts import Drafts
from ts_stateful.language.conversation.history import Delta, Turn
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.prefix import Prefix
from ts_stateful.language.text.dialogue import Dialogue, common_prefix
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.session_log.journal import LogPosition
from ts_stateful.sessions.session import Residency

__all__ = ["Context", "Past", "Stored"]

logger = logging.getLogger(__name__)

_HOST = torch.device("cpu")
_CUDA_NO_MEMORY = 2  # cudaErrorMemoryAllocation, also of memory that cannot be pinned


class Past(NamedTuple):
    """A history that a session had, or begins with."""

    opening: Delta
    turns: list[Turn]
    dialogue: Dialogue
    log: list[int]
    images: list[MediaInput]


class Stored(NamedTuple):
    """The first tokens of a session whose KV states are in the store, as far as is known, and their bytes there.

    An `owner` is the session from which it was forked: its id, and the request that opened it.
    """

    num_tokens: int = 0
    num_bytes: int = 0
    owner: tuple[str, str] | None = None


class Context:
    """The state of one session; implements `sessions.SessionState`.

    Its history is `opening` and the deltas of `turns`, the committed ones; `dialogue`, `log` and `images` follow from them.
    """

    def __init__(self, opening: Delta, kv: KVCache) -> None:
        self.opening = opening
        self.turns: list[Turn] = []
        self.dialogue = Dialogue(opening)
        self.log = list(opening.ids)
        self.images: list[MediaInput] = []
        self.by_url: dict[str, MediaInput] = {}  # of these; never changed, but replaced
        self.kv = kv
        self.adapter: str | None = None  # by which its states are computed; stays the same
        self.prefix: Prefix | None = None
        self.drafts = Drafts()
        self.failed: tuple[int, StatefulError] | None = None  # the last turn that was rolled back
        self.adopted = False  # restored from the store, and not used since
        self.log_position = LogPosition()  # in the store, if there is one
        self.stored = Stored()
        self.incoming = False  # KV states are being read from there
        # Bytes on the device that are kept free for KV states, with those that are there.
        self.reserved = 0
        self.unseen: dict[MediaInput, int] = {}  # the same for embeddings of images, by image
        self._recalled = False  # KV states came from there, and were not used since
        self._device = kv.device
        self._kv_on_host = False

    def open(self, ids: Sequence[int]) -> None:
        """Complete the opening with its ids; the caller adds its images."""
        self.opening = dataclasses.replace(self.opening, ids=tuple(ids))
        self.log = list(self.opening.ids)

    def commit(self, turn: Turn) -> None:
        """Add the next turn; the caller adds its images."""
        _apply(turn.delta, self.dialogue, self.log)
        self.turns.append(turn)
        self.failed = None

    def remember(self, urls: Mapping[str, MediaInput]) -> None:
        """Add URLs of the session's images, and drop those of images that it does not show any more."""
        shown = set(self.images)
        known = {**self.by_url, **urls}
        self.by_url = {url: image for url, image in known.items() if image in shown}

    def fork(self, turns: Sequence[Turn], kv: KVCache) -> Context:
        """Return a context as this one was after `turns`, its first ones; images are shared, `kv` is empty."""
        fork = Context(self.opening, kv)
        fork.prefix, fork.adapter = self.prefix, self.adapter
        fork.go_back(self.after(turns))
        return fork

    def lend_kv(self, fork: Context, length: int) -> None:
        """Copy the KV states of the first `length` tokens to a fork, if they are of use and the device has memory for them."""
        if self.kv.per_prompt:
            return
        with contextlib.suppress(torch.OutOfMemoryError, MemoryError):
            fork.kv = self.kv.copy(length)

    def num_lent(self, length: int) -> int:
        """Return the number of the first `length` tokens whose KV states `lend_kv` copies."""
        length = 0 if self.kv.per_prompt else min(length, self.kv.length)
        recurrent = self.kv.recurrent
        return length if recurrent is None else recurrent.copy(length).length

    def cut(self, length: int) -> None:
        """Drop the KV states after `length` tokens: the history is about to change there."""
        self.kv.truncate(length)
        kept = min(self.stored.num_tokens, length)
        self.stored = self.stored._replace(num_tokens=kept)

    def rewind(self, turns: Sequence[Turn]) -> None:
        """Become what it was after `turns`, its first ones; KV states of what stays the same are kept."""
        past = self.after(turns)
        self.cut(common_prefix(self.log, past.log))
        self.go_back(past)

    def go_back(self, past: Past) -> None:
        """Take a history that `after` or `blank` returned; the caller cuts the KV states."""
        self.opening, self.turns, self.dialogue, self.log, self.images = past
        self.failed = None

    def check_integrity(self) -> None:
        """Assert that the history of all turns gives this state."""
        past = self.after(self.turns)
        assert [turn.number for turn in self.turns] == list(range(1, len(self.turns) + 1))
        assert vars(past.dialogue) == vars(self.dialogue)
        assert past.log == self.log
        assert past.images == self.images

    @staticmethod
    def blank() -> Past:
        """Return the history of a session that was opened with nothing."""
        return Past(Delta(), [], Dialogue(Delta()), [], [])

    def after(self, turns: Sequence[Turn]) -> Past:
        """Return the history after `turns`, its first ones."""
        dialogue, log = Dialogue(self.opening), list(self.opening.ids)
        for turn in turns:
            _apply(turn.delta, dialogue, log)
        num_images = self.opening.num_images + sum(turn.delta.num_images for turn in turns)
        return Past(self.opening, list(turns), dialogue, log, self.images[:num_images])

    @property
    def residency(self) -> Residency:
        """The tier of the KV states."""
        if self.kv.length == 0:
            return Residency.STORE if self.stored.num_tokens else Residency.RECORD
        return Residency.HOST if self._kv_on_host else Residency.DEVICE

    @property
    def device_bytes(self) -> int:
        """Bytes of KV states on the device, or of the room reserved for them and for embeddings still to be computed."""
        num_bytes = max(self.reserved, 0 if self._kv_on_host else self.kv.num_bytes)
        if not self.unseen:  # as in nearly all of the sessions, which are added up for every turn
            return num_bytes
        return num_bytes + sum(s for image, s in self.unseen.items() if image.features is None)

    @property
    def host_bytes(self) -> int:
        """Bytes of KV states in host memory."""
        return self.kv.num_bytes if self._kv_on_host else 0

    @property
    def shared(self) -> list[MediaInput | Prefix]:
        """The images and the system prompt, which other sessions may have too."""
        return [*self.images, self.prefix] if self.prefix else [*self.images]

    @property
    def image_bytes(self) -> int:
        """Bytes of the embeddings of its images, shared or not."""
        return sum(image.num_bytes for image in set(self.images))

    def to_host(self) -> None:
        """Move the KV states to host memory, or drop them if that fails; embeddings are small and stay."""
        try:
            self.kv.move(_HOST)
        # CUDA's errors are RuntimeErrors, as is that nothing more can be pinned.
        except (RuntimeError, MemoryError) as error:
            is_of_device = isinstance(error, torch.AcceleratorError)
            if is_of_device and getattr(error, "error_code", None) != _CUDA_NO_MEMORY:
                raise  # it is poisoned: the process must die
            logger.warning("KV states could not be moved to host memory: %s", error)
            self.to_record()
        else:
            self._kv_on_host = True

    @property
    def num_stored(self) -> int:
        """The number of its first tokens whose KV states may be in the store."""
        return len(self.log) if self.adopted else self.stored.num_tokens

    @property
    def is_stored(self) -> bool:
        """True if all KV states that are here are in the store as well."""
        return self.stored.num_tokens >= self.kv.length

    def to_record(self) -> None:
        """Drop the KV states."""
        self.kv.clear(self._device)
        self._kv_on_host = self._recalled = False

    def recall(self, kv: KVCache) -> None:
        """Take KV states that were read from the store; there must be none."""
        assert self.kv.length == 0
        self.kv = kv
        self._recalled = kv.length > 0

    def release(self) -> None:
        """Drop the reference to the states; others may have one."""
        self.kv.release_snapshot()

    def to_device(self) -> str | None:
        """Move the states to the device; return where the context comes from, None for the device itself."""
        if self._kv_on_host:
            try:
                self.kv.move(self._device)
            except torch.OutOfMemoryError:
                self.to_record()  # the pass that computes them again makes room
            else:
                self._kv_on_host = False
                return "host"
        adopted, recalled = self.adopted, self._recalled
        self.adopted = self._recalled = False
        if self.log and self.kv.length == 0:
            return "store" if adopted else None if self.kv.per_prompt else "replay"
        return "store" if recalled else None


def _apply(turn: Delta, dialogue: Dialogue, log: list[int]) -> None:
    dialogue.apply(turn)
    del log[turn.keep :]
    log += turn.ids
