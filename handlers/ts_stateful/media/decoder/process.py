"""The engine's side of one decoder process."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from ts_stateful.clock import SYSTEM_CLOCK, Clock
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.frames import (
    BYTES_PER_PIXEL,
    GO,
    HEAD,
    IMAGE,
    REPLY_BYTES,
    Audible,
    Reply,
    Samples,
    Status,
)

__all__ = ["DecoderDied", "DecoderNotStarted", "DecoderProcess"]

logger = logging.getLogger(__name__)

_MODULE = "ts_stateful.media.decoder.main"
_START_S = 60.0  # for the imports of a decoder, on a busy machine
_EXIT_S = 1.0  # after it has closed its connection
_PART_BYTES = 200_000
# What an interpreter needs to find its modules and libraries; the rest may hold keys.
_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")


class DecoderDied(RuntimeError):
    """The decoder exited, or broke the protocol, before it had answered."""


class DecoderNotStarted(DecoderDied):
    """The decoder exited before it took an image, which is not the image's fault."""


class DecoderProcess:
    """A decoder, with one image at a time. It exits when its connection closes, so it does not outlive its engine.

    Methods raise `DecoderDied`, or `TimeoutError` if they take longer than `decode_timeout_sec`. The process is of no use
    after that.
    """

    def __init__(self, config: MediaConfig, clock: Clock = SYSTEM_CLOCK) -> None:
        self._timeout_s = config.decode_timeout_sec
        self._clock = clock
        self._deadline_s = 0.0
        self._is_ready = False
        self._connection, theirs = socket.socketpair()
        numbers = (config.max_bytes, config.max_pixels, config.decode_timeout_sec)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, *map(str, numbers)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=_environment(os.environ),
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return int(self._process.pid)

    def open(self, data: bytes, wanted: Audible = IMAGE) -> Reply:
        """Send a file, of which a clip is wanted so; return its size by its header, or the reason why it has none."""
        if not self._is_ready:
            self._wait_for_start()
        return self._ask(HEAD.pack(len(data), *wanted) + data)

    def decode_image(self, max_pixels: int) -> Image.Image | Status:
        """Return the pixels of the opened image in RGB, of which there must be at most `max_pixels`, or a reason why not."""
        status, width, height = self._ask(GO)
        if status is not Status.OK:
            return status
        if not 0 < width * height <= max_pixels:
            raise DecoderDied("a decoder sent more pixels than it announced")
        image = Image.new("RGB", (width, height))
        num_rows = max(1, _PART_BYTES // (BYTES_PER_PIXEL * width))
        part = bytearray(BYTES_PER_PIXEL * width * min(num_rows, height))
        for top in range(0, height, num_rows):
            size = (width, min(num_rows, height - top))
            view = memoryview(part)[: BYTES_PER_PIXEL * width * size[1]]
            self._fill(view)
            image.paste(Image.frombytes("RGB", size, view), (0, top))
        return image

    def decode_clip(self, max_samples: int) -> Samples | Status:
        """Return the samples of the opened clip, of which there must be at most `max_samples`, or a reason why not."""
        status, num_samples, _ = self._ask(GO)
        if status is not Status.OK:
            return status
        if not 0 < num_samples <= max_samples:
            raise DecoderDied("a decoder sent more samples than it announced")
        data = bytearray(4 * num_samples)
        self._fill(memoryview(data))
        return np.frombuffer(data, np.float32)

    def _ask(self, message: bytes) -> Reply:
        self._begin()
        try:
            self._connection.sendall(message)
        except OSError as error:
            raise self._failure(error) from None
        return self._reply()

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _wait_for_start(self) -> None:
        self._begin(_START_S)
        try:
            is_confined = self._reply().width
        except TimeoutError:
            raise DecoderNotStarted(f"a decoder did not start within {_START_S:g} s") from None
        except DecoderDied as error:
            raise DecoderNotStarted(f"{error} at its start") from None
        self._is_ready = True
        if not is_confined:
            logger.warning("the kernel refuses a filter of system calls: decoders run without")

    def _begin(self, timeout_s: float | None = None) -> None:
        self._deadline_s = self._clock.monotonic() + (timeout_s or self._timeout_s)
        self._set_timeout()

    def _set_timeout(self) -> None:
        remaining_s = self._deadline_s - self._clock.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining_s)

    def _reply(self) -> Reply:
        data = bytearray(REPLY_BYTES)
        self._fill(memoryview(data))
        try:
            return Reply.from_bytes(data)
        except ValueError as error:
            raise DecoderDied("a decoder sent an unknown status") from error

    def _fill(self, view: memoryview) -> None:
        while view:
            self._set_timeout()  # each time: a decoder could send byte by byte
            try:
                count = self._connection.recv_into(view)
            except OSError as error:
                raise self._failure(error) from None
            if count == 0:
                raise self._failure()
            view = view[count:]

    def _failure(self, error: OSError | None = None) -> Exception:
        if isinstance(error, TimeoutError):
            return error
        try:
            status = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            return DecoderDied("a decoder closed its connection")
        if status == -signal.SIGPROF:
            return TimeoutError()
        return DecoderDied(f"a decoder exited with status {status}")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a decoder, which finds this package first."""
    kept = {name: environ[name] for name in _VARIABLES if name in environ}
    paths = [str(Path(__file__).parents[3]), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
