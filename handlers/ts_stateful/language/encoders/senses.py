"""Images and clips of one conversation, read by the towers of a stock model that sees and hears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import PIL.Image

from ts_stateful.language.encoders.encoder import Encoder, MediaInput, Tower
from ts_stateful.language.encoders.hearing import Hearing
from ts_stateful.language.encoders.vision import Vision
from ts_stateful.media.decoder.frames import Samples
from ts_stateful.media.load import MediaFile

__all__ = ["Senses"]

_Decoded = PIL.Image.Image | Samples


class Senses(Encoder[_Decoded]):
    """The parts of a model that read images and clips. An image or clip is of the kind whose token is among its ids."""

    def __init__(self, vision: Vision, hearing: Hearing) -> None:
        super().__init__()
        self._vision, self._hearing = vision, hearing

    @property
    def towers(self) -> tuple[Tower[Any], ...]:
        """See `Encoder`."""
        return self._vision, self._hearing

    def decode(self, file: MediaFile) -> _Decoded:
        """See `Encoder`."""
        return self._hearing.decode(file) if file.is_audio else self._vision.decode(file)

    def key(self, decoded: _Decoded, *salts: str) -> str:
        """See `Encoder`."""
        return self._reader(decoded).key(decoded, *salts)

    def prepare(self, decoded: _Decoded, key: str = "") -> MediaInput:
        """See `Encoder`."""
        return self._reader(decoded).prepare(decoded, key)

    def process(self, text: str, decoded: Sequence[_Decoded]) -> dict[str, Any]:
        """See `Encoder`."""
        pictures = [each for each in decoded if isinstance(each, PIL.Image.Image)]
        clips = [each for each in decoded if not isinstance(each, PIL.Image.Image)]
        if not clips:
            return self._vision.process(text, pictures)
        return self._hearing.process(text, clips, pictures)

    def samples(self) -> list[list[_Decoded]]:
        """See `Encoder`. Pictures and clips take turns."""
        both = zip(self._vision.samples(), self._hearing.samples(), strict=True)
        return [[pictures[0], *clips[:2], *pictures[1:2]] for pictures, clips in both]

    def _reader(self, decoded: _Decoded) -> Tower[Any]:
        return self._vision if isinstance(decoded, PIL.Image.Image) else self._hearing
