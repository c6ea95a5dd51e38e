"""Images and clips that are too large for a request: they are uploaded in parts before the prompt that refers to them."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

import msgspec

from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import encode
from ts_stateful.client.errors import ProtocolError
from ts_stateful.client.images import with_media
from ts_stateful.client.retry import Attempts
from ts_stateful.protocol.answers import Uploaded
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Media, Open, Prompt, Upload

__all__ = ["ImageUploads", "fits"]

# A transport's overhead for a document, and an `upload`'s for its part.
_ENVELOPE_BYTES = 1024
# Smaller than most servers' limit: while an engine reads a part, it generates nothing for any session.
_MAX_PART_CHARS = 1_000_000
_MAX_ROUNDS = 5
_FIELD = re.compile(r"(images|audio)\[\d+\]\.upload")


def fits(command: Open | Prompt, max_body_bytes: int) -> bool:
    """Return True if a request can be sent in one piece; a request without files always is."""
    files = sum(len(image.base64 or "") for image in command.media)
    return not files or len(encode(command)) + _ENVELOPE_BYTES <= max_body_bytes


class ImageUploads:
    """The uploads of one session. `first` are the files that its `open` could not carry: turn 1 has them."""

    def __init__(self, calls: Calls, first: Sequence[Media] = ()) -> None:
        self.first = tuple(first)
        self._calls = calls
        self._complete: set[tuple[str, str]] = set()  # session ids and hashes

    def carried(self, prompt: Prompt, attempts: Attempts) -> Prompt:
        """Return a numbered prompt in the form in which it can be sent, after the uploads that this needs.

        Raises:
            StatefulError: the server refuses an upload, for instance by `MediaTooLarge`.
            ClientError: there was no answer.
        """
        if prompt.turn == 1 and self.first:
            prompt = with_media(prompt, (*self.first, *prompt.media))
        if fits(prompt, self._calls.transport.max_body_bytes):
            return prompt
        return with_media(prompt, [self._uploaded(prompt, each, attempts) for each in prompt.media])

    def lost(self, error: Exception) -> bool:
        """Return True if a prompt failed because the server dropped an upload; `carried` then uploads again."""
        if not self._complete or not isinstance(error, InvalidRequest):
            return False
        if not _FIELD.fullmatch(error.field or ""):
            return False
        self._complete.clear()
        return True

    def _uploaded(self, prompt: Prompt, image: Media, attempts: Attempts) -> Media:
        if (text := image.base64) is None:
            return image
        # Parts are cut from the text: four characters are always three bytes.
        room = self._calls.transport.max_body_bytes - _ENVELOPE_BYTES
        size = max(4, min(room, _MAX_PART_CHARS) // 4 * 4)
        sha256 = hashlib.sha256(base64.b64decode(text)).hexdigest()
        key = (str(prompt.session_id), sha256)
        missing: Sequence[int] = range(-(-len(text) // size)) if key not in self._complete else ()
        whole = Upload(session_id=prompt.session_id, sha256=sha256, parts=max(1, len(missing)))
        for _ in range(_MAX_ROUNDS):
            for number in missing:
                piece = text[number * size : (number + 1) * size]
                part = msgspec.structs.replace(whole, part=number, base64=piece)
                answer = self._calls.call(part, Uploaded, attempts.deadline.remaining_s())
                missing = answer.missing
                if answer.complete:
                    break
            if not missing:
                self._complete.add(key)
                return type(image)(upload=sha256)
        raise ProtocolError(
            f"the server lost parts of an image in {_MAX_ROUNDS} uploads; send a smaller image"
        )
