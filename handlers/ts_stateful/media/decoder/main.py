"""The decoder process: it reads files from its standard input, a socket, and returns pixels or samples."""

from __future__ import annotations

import contextlib
import io
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from ts_stateful.media.decode import open_clip, open_image, to_pixels, to_samples
from ts_stateful.media.decoder.frames import (
    AUDIO_FORMATS,
    BYTES_PER_PIXEL,
    FORMATS,
    GO,
    HEAD,
    Audible,
    Reply,
    Status,
    Unfit,
)
from ts_stateful.media.decoder.sandbox import become_first_victim, confine

__all__ = ["main"]

# Memory per pixel at the peak. The most that was measured is 21, of a WebP that lies on its side.
_PEAK_BYTES_PER_PIXEL = 32
_SPARE_BYTES = 64_000_000
_TRIAL_RATE = 8_000
_PART_BYTES = 200_000  # of pixels that are sent at once
T = TypeVar("T")


class _Decoder:
    """The decoder's end of the connection. At most `timeout_s` seconds of processor time are for one file."""

    def __init__(self, connection: socket.socket, max_pixels: int, timeout_s: float) -> None:
        self._connection = connection
        self._max_pixels = max_pixels
        self._timeout_s = timeout_s

    def ready(self, *, is_confined: bool) -> None:
        """Report that files may come."""
        self._connection.sendall(Reply(Status.OK, is_confined).to_bytes())

    def serve(self) -> None:
        """Decode files until the engine closes the connection, or exits."""
        while (head := self._read(HEAD.size)) is not None:
            num_bytes, *wanted = HEAD.unpack(head)
            data = self._read(num_bytes)
            if data is None:
                return
            # SIGPROF ends the process: a parser may be in a loop that never returns to Python.
            signal.setitimer(signal.ITIMER_PROF, self._timeout_s)
            if (audible := Audible(*wanted)).rate:
                self._answer_clip(bytes(data), audible)
            else:
                self._answer_image(bytes(data))
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _answer_image(self, data: bytes) -> None:
        opened = self._step(lambda: open_image(data, self._max_pixels), lambda image: image.size)
        if opened is None or self._read(len(GO)) is None:
            return
        pixels = self._step(lambda: to_pixels(opened), lambda image: image.size)
        if pixels is not None:
            for part in _parts(pixels):
                self._connection.sendall(part)

    def _answer_clip(self, data: bytes, wanted: Audible) -> None:
        opened = self._step(lambda: open_clip(data, wanted), lambda clip: (clip.num_samples, 1))
        if opened is None or self._read(len(GO)) is None:
            return
        samples = self._step(lambda: to_samples(opened), lambda made: (len(made), 1))
        if samples is not None:
            self._connection.sendall(samples.tobytes())

    def _step(self, step: Callable[[], T], size_of: Callable[[T], tuple[int, int]]) -> T | None:
        """Reply with the size of what a step makes, and return it; reply with the reason and return None if it fails."""
        made = _attempt(step)
        reply = Reply(made) if isinstance(made, Status) else Reply(Status.OK, *size_of(made))
        self._connection.sendall(reply.to_bytes())
        return None if isinstance(made, Status) else made

    def _read(self, num_bytes: int) -> bytearray | None:
        data = bytearray(num_bytes)
        view = memoryview(data)
        while view:
            count = self._connection.recv_into(view)
            if count == 0:
                return None
            view = view[count:]
        return data


def _attempt(step: Callable[[], T]) -> T | Status:
    try:
        return step()
    except Unfit as unfit:
        return unfit.status
    except MemoryError:
        return Status.NO_MEMORY
    except Exception:  # the boundary to the parsers of Pillow and libsndfile
        return Status.DAMAGED


def _parts(pixels: Image.Image) -> Iterator[bytes]:
    """Yield the pixels in parts, as all of them at once would take their memory twice."""
    num_rows = max(1, _PART_BYTES // (BYTES_PER_PIXEL * pixels.width))
    for top in range(0, pixels.height, num_rows):
        bottom = min(pixels.height, top + num_rows)
        yield pixels.crop((0, top, pixels.width, bottom)).tobytes()


def _import_all() -> None:
    """Decode a file of each format: libraries import much at first use, and a confined process can open no file."""
    exif = Image.Exif()
    exif[0x0112] = 3
    for kind in FORMATS:
        file = io.BytesIO()
        options = {} if kind in ("GIF", "BMP") else {"exif": exif}
        Image.new("RGBA" if kind == "PNG" else "RGB", (1, 1)).save(file, kind, **options)
        to_pixels(open_image(file.getvalue(), 1))
    with contextlib.suppress(ImportError):  # an extra, without which no model hears
        soundfile: Any = import_module("soundfile")
        for kind in AUDIO_FORMATS:
            file = io.BytesIO()
            soundfile.write(file, np.zeros((_TRIAL_RATE, 2)), _TRIAL_RATE, format=kind)
            to_samples(open_clip(file.getvalue(), Audible(2 * _TRIAL_RATE, 0, 1)))


def main(max_bytes: int, max_pixels: int, timeout_s: float) -> int:
    """Decode images of at most `max_pixels` in files of at most `max_bytes`; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    become_first_victim()
    _import_all()
    decoder = _Decoder(socket.socket(fileno=0), max_pixels, timeout_s)
    is_confined = confine(max_pixels * _PEAK_BYTES_PER_PIXEL + 2 * max_bytes + _SPARE_BYTES)
    decoder.ready(is_confined=is_confined)
    decoder.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
