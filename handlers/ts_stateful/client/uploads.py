"""Prompts whose images are too large to go along: these go ahead, in parts, and the prompt refers to them.

Owns when that is so, the parts, and which uploads a session is believed to have. Knows nothing of transports but how large a
body may be.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

import msgspec

from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import encode
from ts_stateful.client.errors import ProtocolError
from ts_stateful.client.retry import Attempts
from ts_stateful.protocol.answers import Uploaded
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Image, Open, Prompt, Upload

__all__ = ["Carrier", "fits"]

# What a transport puts around a document, and an `upload` around its part.
_ENVELOPE_BYTES = 1024
# Smaller than most servers' limit: an engine that takes in a part generates nothing meanwhile, for anybody.
_MAX_PART_CHARS = 1_000_000
_MAX_ROUNDS = 5
_FIELD = re.compile(r"images\[\d+\]\.upload")


def fits(command: Open | Prompt, max_body_bytes: int) -> bool:
    """Whether a request can go in one piece; one without files has to."""
    files = sum(len(image.base64 or "") for image in command.images)
    return not files or len(encode(command)) + _ENVELOPE_BYTES <= max_body_bytes


class Carrier:
    """Makes the prompts of one session fit. `first` are the images that its `open` could not take: turn 1 has them."""

    def __init__(self, calls: Calls, first: Sequence[Image] = ()) -> None:
        self.first = tuple(first)
        self._calls = calls
        self._there: set[tuple[str, str]] = set()  # sessions and hashes of what they have got

    def carried(self, prompt: Prompt, attempts: Attempts) -> Prompt:
        """The prompt, numbered as it is, in the form in which it can be sent; its files may be uploaded for that.

        Raises:
            StatefulError: the server refuses an upload, for instance by `MediaTooLarge`.
            ClientError: there was no answer.
        """
        if prompt.turn == 1 and self.first:
            prompt = msgspec.structs.replace(prompt, images=(*self.first, *prompt.images))
        if fits(prompt, self._calls.transport.max_body_bytes):
            return prompt
        images = tuple(
            image if image.base64 is None else self._uploaded(prompt, image.base64, attempts)
            for image in prompt.images
        )
        return msgspec.structs.replace(prompt, images=images)

    def lost(self, error: Exception) -> bool:
        """Whether a prompt failed since the server had dropped an upload, which then is uploaded again by `carried`."""
        if not self._there or not isinstance(error, InvalidRequest):
            return False
        if not _FIELD.fullmatch(error.field or ""):
            return False
        self._there.clear()
        return True

    def _uploaded(self, prompt: Prompt, text: str, attempts: Attempts) -> Image:
        # Parts of the text, as four characters are three bytes wherever they stand.
        room = self._calls.transport.max_body_bytes - _ENVELOPE_BYTES
        size = max(4, min(room, _MAX_PART_CHARS) // 4 * 4)
        sha256 = hashlib.sha256(base64.b64decode(text)).hexdigest()
        place = (str(prompt.session_id), sha256)
        missing: Sequence[int] = range(-(-len(text) // size)) if place not in self._there else ()
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
                self._there.add(place)
                return Image(upload=sha256)
        raise ProtocolError("the server loses parts of an image as they come")
