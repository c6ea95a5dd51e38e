"""The decoders of an engine, and the bound on the pixels that are being decoded and used."""

from __future__ import annotations

import logging
import threading
from collections import deque
from types import TracebackType

from PIL import Image

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.frames import FORMATS, Reply, Status
from ts_stateful.media.decoder.process import DecoderDied, DecoderNotStarted, DecoderProcess
from ts_stateful.media.encoded import check_size
from ts_stateful.memory import give_memory_back
from ts_stateful.protocol.errors import MediaError, MediaInvalid, MediaTooLarge

__all__ = ["DecoderPool", "Lease", "PixelBudget"]

logger = logging.getLogger(__name__)

_LARGE_PIXELS = 4_000_000


class PixelBudget:
    """Pixels that may be in memory at the same time. Callers get theirs in the order in which they ask."""

    def __init__(self, num_pixels: int) -> None:
        self._free = num_pixels
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @property
    def free(self) -> int:
        """Pixels that no caller has."""
        return self._free

    @property
    def num_waiting(self) -> int:
        """Callers that wait for theirs."""
        return len(self._waiting)

    def acquire(self, num_pixels: int) -> None:
        """Take so many pixels, at most all of them; wait until they are free."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            self._changed.wait_for(lambda: self._waiting[0] is turn and self._free >= num_pixels)
            self._waiting.popleft()
            self._free -= num_pixels
            self._changed.notify_all()

    def release(self, num_pixels: int) -> None:
        """Return pixels."""
        with self._changed:
            self._free += num_pixels
            self._changed.notify_all()


class DecoderPool:
    """Decoders that are kept for the next image; thread-safe. There are as many as threads that decode at the same time.

    All images together that are being decoded, or whose pixels are in use, have at most `max_pixels`.
    """

    def __init__(self, config: MediaConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.budget = PixelBudget(config.max_pixels)
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[DecoderProcess] = []
        self._is_closed = False

    def warm_up(self) -> None:
        """Start the first decoder, so that the first image finds it ready. Returns at once."""
        self.give_back(self.take(fresh=True))

    def close(self) -> None:
        """End the decoders; those that decode end with their image."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for process in idle:
            process.close()

    @property
    def idle_pids(self) -> tuple[int, ...]:
        """The processes that wait for an image."""
        with self._lock:
            return tuple(process.pid for process in self._idle)

    def take(self, *, fresh: bool = False) -> DecoderProcess:
        """Return a decoder for one image: the last one used, or a new one."""
        with self._lock:
            if self._idle and not fresh:
                return self._idle.pop()
        return DecoderProcess(self.config, self._clock)

    def give_back(self, process: DecoderProcess) -> None:
        """Keep a decoder for the next image."""
        with self._lock:
            if not self._is_closed:
                self._idle.append(process)
                return
        process.close()


class Lease:
    """The right to decode one image. A context manager: leaving it returns the image's pixels to the budget."""

    def __init__(self, pool: DecoderPool) -> None:
        self._pool = pool
        self._num_pixels = 0

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._return_pixels()

    def decode(self, data: bytes, field: str) -> Image.Image:
        """Decode an image file: RGB, upright, transparency on white; of several frames the first.

        A decoder that dies is replaced, and the image gets a second attempt: it may have been killed for another reason.

        Raises:
            MediaTooLarge: more than `max_bytes` bytes or, by its header, more than `max_pixels` pixels.
            MediaInvalid: it is empty, truncated, damaged or in no accepted format, takes longer than `decode_timeout_sec`, or
                kills its decoders.
            DecoderNotStarted: decoders do not start.
        """
        check_size(len(data), self._pool.config.max_bytes, field)
        try:
            return self._attempt(self._pool.take(), data, field)
        except DecoderDied as error:
            logger.warning("%s; another one decodes the image again", error)
        try:
            return self._attempt(self._pool.take(fresh=True), data, field)
        except DecoderNotStarted:
            raise
        except DecoderDied as error:
            logger.warning("%s; the image is refused", error)
            message = "the image cannot be decoded: its decoder crashed; send it in another format"
            raise MediaInvalid(message, field=field) from None

    def _attempt(self, process: DecoderProcess, data: bytes, field: str) -> Image.Image:
        is_reusable = False
        try:
            made = self._run(process, data)
            is_reusable = True
        except TimeoutError:
            limit_s = self._pool.config.decode_timeout_sec
            message = f"the image could not be decoded within {limit_s:g} s; send a smaller one"
            raise MediaInvalid(message, field=field) from None
        finally:
            if is_reusable:
                self._pool.give_back(process)
            else:
                process.close()
        if isinstance(made, Status):
            raise _refusal(made, self._pool.config, field)
        return made

    def _run(self, process: DecoderProcess, data: bytes) -> Image.Image | Status:
        opened: Reply = process.open(data)
        if opened.status is not Status.OK:
            return opened.status
        num_pixels = opened.width * opened.height
        if num_pixels > self._pool.config.max_pixels:
            raise DecoderDied("a decoder announced more pixels than are allowed")
        self._return_pixels()
        self._pool.budget.acquire(num_pixels)
        self._num_pixels = num_pixels
        return process.decode(num_pixels)

    def _return_pixels(self) -> None:
        if self._num_pixels:
            if self._num_pixels >= _LARGE_PIXELS:
                # The allocator keeps memory for each thread: images one after the other would add up.
                give_memory_back()
            self._pool.budget.release(self._num_pixels)
            self._num_pixels = 0


def _refusal(status: Status, config: MediaConfig, field: str) -> MediaError:
    """Return the error of an image. Its words are the engine's own, as a decoder is not trusted."""
    if status is Status.TOO_MANY_PIXELS:
        message = f"the image has more than {config.max_pixels} pixels; send a smaller one"
        return MediaTooLarge(message, field=field)
    if status is Status.NO_MEMORY:
        message = "decoding the image takes more memory than allowed; send a smaller one"
        return MediaTooLarge(message, field=field)
    message = f"the image is damaged or in an unknown format; send one of {', '.join(FORMATS)}"
    return MediaInvalid(message, field=field)
