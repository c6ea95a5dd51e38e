"""The decoders of an engine, and the bound on the pixels that are being decoded and used."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections import deque

import numpy as np
from PIL import Image

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.frames import (
    AUDIO_FORMATS,
    BYTES_PER_PIXEL,
    FORMATS,
    IMAGE,
    Audible,
    Reply,
    Samples,
    Status,
)
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
        self.free = num_pixels
        self.waiting: deque[object] = deque()  # for their pixels
        self._changed = threading.Condition()

    def acquire(self, num_pixels: int) -> None:
        """Take so many pixels, at most all of them; wait until they are free."""
        turn = object()
        with self._changed:
            self.waiting.append(turn)
            self._changed.wait_for(lambda: self.waiting[0] is turn and self.free >= num_pixels)
            self.waiting.popleft()
            self.free -= num_pixels
            self._changed.notify_all()

    def release(self, num_pixels: int) -> None:
        """Return pixels."""
        with self._changed:
            self.free += num_pixels
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


class Lease(contextlib.AbstractContextManager["Lease"]):
    """The right to decode one file. A context manager: leaving it returns the file's pixels to the budget."""

    def __init__(self, pool: DecoderPool) -> None:
        self._pool = pool
        self._num_pixels = 0

    def __exit__(self, *_: object) -> None:
        self._return_pixels()

    def decode_image(self, data: bytes, field: str) -> Image.Image:
        """Decode an image file: RGB, upright, transparency on white; of several frames the first.

        A decoder that dies is replaced, and the file gets a second attempt: it may have been killed for another reason.

        Raises:
            MediaTooLarge: more than `max_bytes` bytes or, by its header, more than `max_pixels` pixels.
            MediaInvalid: it is empty, truncated, damaged or in no accepted format, takes longer than `decode_timeout_sec`, or
                kills its decoders.
            DecoderNotStarted: decoders do not start.
        """
        made = self._decode(data, field, IMAGE)
        assert isinstance(made, Image.Image)
        return made

    def decode_audio(self, data: bytes, field: str, wanted: Audible) -> Samples:
        """Decode a clip: one channel, at the rate that is wanted.

        Raises as `decode_image`, and MediaTooLarge or MediaInvalid if it is longer or shorter than wanted.
        """
        longest = min(wanted.max_seconds, self._pool.config.max_audio_sec)
        made = self._decode(data, field, wanted._replace(max_seconds=longest))
        assert isinstance(made, np.ndarray)
        return made

    def _decode(self, data: bytes, field: str, wanted: Audible) -> Image.Image | Samples:
        check_size(len(data), self._pool.config.max_bytes, field)
        try:
            return self._attempt(self._pool.take(), data, field, wanted)
        except DecoderDied as error:
            logger.warning("%s; another one decodes the file again", error)
        try:
            return self._attempt(self._pool.take(fresh=True), data, field, wanted)
        except DecoderNotStarted:
            raise
        except DecoderDied as error:
            logger.warning("%s; the file is refused", error)
            message = f"the {_noun(wanted)} cannot be decoded: its decoder crashed; send it in another format"
            raise MediaInvalid(message, field=field) from None

    def _attempt(
        self, process: DecoderProcess, data: bytes, field: str, wanted: Audible
    ) -> Image.Image | Samples:
        is_reusable = False
        try:
            made = self._run(process, data, wanted)
            is_reusable = True
        except TimeoutError:
            limit_s = self._pool.config.decode_timeout_sec
            message = (
                f"the {_noun(wanted)} could not be decoded within {limit_s:g} s; send a smaller one"
            )
            raise MediaInvalid(message, field=field) from None
        finally:
            if is_reusable:
                self._pool.give_back(process)
            else:
                process.close()
        if isinstance(made, Status):
            raise _refusal(made, self._pool.config, field, wanted)
        return made

    def _run(
        self, process: DecoderProcess, data: bytes, wanted: Audible
    ) -> Image.Image | Samples | Status:
        opened: Reply = process.open(data, wanted)
        if opened.status is not Status.OK:
            return opened.status
        size, max_pixels = opened.width * opened.height, self._pool.config.max_pixels
        if size > (math.ceil(wanted.rate * wanted.max_seconds) if wanted.rate else max_pixels):
            raise DecoderDied("a decoder announced more than is allowed")
        self._return_pixels()
        # A sample takes the memory of one pixel and a third.
        num_pixels = min(max_pixels, 4 * size // BYTES_PER_PIXEL) if wanted.rate else size
        self._pool.budget.acquire(num_pixels)
        self._num_pixels = num_pixels
        if wanted.rate:
            return process.decode_clip(size + 1)  # the resampler rounds otherwise
        return process.decode_image(size)

    def _return_pixels(self) -> None:
        if self._num_pixels:
            if self._num_pixels >= _LARGE_PIXELS:
                # The allocator keeps memory for each thread: images one after the other would add up.
                give_memory_back()
            self._pool.budget.release(self._num_pixels)
            self._num_pixels = 0


def _noun(wanted: Audible) -> str:
    return "clip" if wanted.rate else "image"


def _refusal(status: Status, config: MediaConfig, field: str, wanted: Audible) -> MediaError:
    """Return the error of a file. Its words are the engine's own, as a decoder is not trusted."""
    noun, formats = _noun(wanted), AUDIO_FORMATS if wanted.rate else FORMATS
    too_large = {
        Status.TOO_MANY_PIXELS: f"the image has more than {config.max_pixels} pixels; send a smaller one",
        Status.TOO_LONG: f"the clip is longer than {wanted.max_seconds:g} s; send a shorter one",
        Status.NO_MEMORY: f"decoding the {noun} takes more memory than allowed; send a smaller one",
    }
    if status in too_large:
        return MediaTooLarge(too_large[status], field=field)
    if status is Status.TOO_SHORT:
        message = f"the clip is shorter than {wanted.min_seconds:g} s; send a longer one"
    else:
        message = f"the {noun} is damaged or in an unknown format; send one of {', '.join(formats)}"
    return MediaInvalid(message, field=field)
