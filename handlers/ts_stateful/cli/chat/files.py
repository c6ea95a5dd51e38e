"""The images and clips that wait for the next prompt, each checked when it is named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ts_stateful.config.sizes.quantities import show_bytes
from ts_stateful.protocol.answers import ServerLimits

__all__ = ["FileRefused", "Files", "is_url"]


class FileRefused(Exception):
    """The server would not take the file; the message says why."""


class _Kind(NamedTuple):
    nouns: str
    most: int  # of one request


class Files:
    """Files by kind, for a server with the `limits`."""

    def __init__(self, limits: ServerLimits) -> None:
        self._max_bytes = limits.image_bytes
        self._image = _Kind("images", limits.images)
        self._clip = _Kind("clips", limits.audio)
        self.images: list[str] = []
        self.audio: list[str] = []

    def add_images(self, names: Iterable[str]) -> None:
        """Add images; see `add_audio`."""
        self._add(names, self.images, self._image)

    def add_audio(self, names: Iterable[str]) -> None:
        """Add clips.

        Raises:
            FileRefused: the model takes none, or not as many, or not as large ones; or there can be no such name.
            OSError: there is no such file, or it cannot be read.
        """
        self._add(names, self.audio, self._clip)

    def _add(self, names: Iterable[str], waiting: list[str], kind: _Kind) -> None:
        for name in names:
            if kind.most == 0:
                hears = "; it takes clips, as .wav or .flac" if self._clip.most else ""
                raise FileRefused(f"this model takes no {kind.nouns}{hears}")
            if len(waiting) == kind.most:
                raise FileRefused(f"the server takes {kind.most} {kind.nouns} with a prompt")
            try:
                if is_url(name):
                    urlsplit(name)
                    waiting.append(name)
                else:
                    waiting.append(self._checked(Path(name).expanduser(), kind))
            except (ValueError, RuntimeError) as error:  # a URL, a NUL, the home of nobody
                raise FileRefused(f"{name[:60]!r} names no file: {error}") from error

    def _checked(self, path: Path, kind: _Kind) -> str:
        with path.open("rb") as file:
            is_empty = not file.read(1)
        num_bytes = path.stat().st_size
        if is_empty:
            raise FileRefused(f"{path.name} is empty")
        if num_bytes > self._max_bytes:
            raise FileRefused(
                f"{path.name} has {show_bytes(num_bytes)}; the server takes {kind.nouns} of up to"
                f" {show_bytes(self._max_bytes)}"
            )
        return str(path)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        return (*self.images, *self.audio)

    def clear(self) -> None:
        """Forget all files."""
        self.images.clear()
        self.audio.clear()


def is_url(name: str) -> bool:
    """Return True if the server has to fetch the file, or its name has its content."""
    return "://" in name or name.startswith("data:")
