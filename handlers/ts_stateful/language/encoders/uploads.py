"""Image files that clients upload in parts; a session keeps them in memory until its prompts use them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence as Items
from typing import Any
from weakref import WeakKeyDictionary

from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.encoded import check_size, decode_base64
from ts_stateful.media.load import UploadedMedia, named
from ts_stateful.protocol.answers import Uploaded
from ts_stateful.protocol.errors import InvalidRequest, MediaInvalid
from ts_stateful.protocol.requests import Media, Upload
from ts_stateful.sessions.session import Session

__all__ = ["Uploads"]


class _File:
    """One upload. Parts are hashed as soon as all parts before them arrived, so that the last one returns quickly."""

    def __init__(self, num_parts: int) -> None:
        self.num_parts = num_parts
        self.parts: dict[int, bytes] = {}
        self.num_bytes = 0
        self.touched = 0  # the number of earlier uses
        self.whole: bytes | None = None
        self._hash = hashlib.sha256()
        self._num_hashed = 0

    def add(self, number: int, data: bytes) -> None:
        """Add a missing part."""
        self.parts[number] = data
        self.num_bytes += len(data)
        while self._num_hashed in self.parts:
            self._hash.update(self.parts[self._num_hashed])
            self._num_hashed += 1

    def join(self) -> str:
        """Join the parts, which must be complete, and return the file's SHA-256."""
        self.whole = b"".join(self.parts[number] for number in range(self.num_parts))
        self.parts = {}
        return self._hash.hexdigest()

    @property
    def missing(self) -> tuple[int, ...]:
        """The numbers of missing parts."""
        if self.whole is not None:
            return ()
        return tuple(number for number in range(self.num_parts) if number not in self.parts)


class Uploads:
    """The uploads of an engine's sessions: in each at most `max_images`, in all of them at most `max_upload_bytes`.

    Beyond that the least recently used are dropped. Uploads also end with their session or with the engine. A client uploads a
    missing one again.
    """

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        # By their SHA-256. The uploads of a session end with it.
        self._files: WeakKeyDictionary[Session[Any], dict[str, _File]] = WeakKeyDictionary()
        self._clock = itertools.count(1)

    @property
    def num_bytes(self) -> int:
        """Bytes of all uploads of all sessions."""
        return sum(file.num_bytes for files in self._files.values() for file in files.values())

    def receive(
        self, session: Session[Any], command: Upload, attachments: Items[bytes]
    ) -> Uploaded:
        """Add a part; one that is already present changes nothing.

        Raises:
            InvalidRequest: there is no part of that number, or the request has no data, or two.
            MediaTooLarge: the file is larger than `max_bytes`. It is dropped.
            MediaInvalid: the part is not base64, or the file has another hash, in which case it is dropped.
        """
        if command.part >= command.parts:
            raise InvalidRequest(
                f"part {command.part} is out of range; number parts from 0 to `parts` - 1",
                field="part",
            )
        data = self._part(command, attachments)
        files = self._files.setdefault(session, {})
        file = files.pop(command.sha256, None)
        if file is None or (file.whole is None and file.num_parts != command.parts):
            file = _File(command.parts)  # another number of parts restarts the upload
        if command.part in file.missing:
            check_size(file.num_bytes + len(data), self._config.max_bytes, "base64")
            file.add(command.part, data)
            if not file.missing and file.join() != command.sha256:
                raise MediaInvalid("the file has another SHA-256; upload it again", field="sha256")
        files[command.sha256] = file
        file.touched = next(self._clock)
        self._make_room(session)
        missing = file.missing
        return Uploaded(
            session.session_id,
            command.sha256,
            received=file.num_parts - len(missing),
            missing=missing,
            complete=not missing,
        )

    def find(self, session: Session[Any] | None, images: Items[Media]) -> tuple[Media, ...]:
        """Return the files, with the data of uploaded ones; `session` is None before it is open.

        Raises:
            InvalidRequest: an upload is missing in the session, or incomplete.
        """
        return tuple(
            image if image.upload is None else self._found(session, image, field)
            for field, image in named(images)
        )

    def _found(self, session: Session[Any] | None, image: Media, field: str) -> UploadedMedia:
        files = {} if session is None else self._files.get(session, {})
        file = files.get(image.upload or "")
        if file is None or file.whole is None:
            raise InvalidRequest(
                "no such upload in this session, or it is incomplete; `upload` it again",
                field=f"{field}.upload",
            )
        file.touched = next(self._clock)
        return UploadedMedia(upload=image.upload, data=file.whole, named_as=image.kind)

    def _part(self, command: Upload, attachments: Items[bytes]) -> bytes:
        if (command.base64 is not None) + len(attachments) != 1:
            raise InvalidRequest(
                "send exactly one part, in `base64` or as the file of a form", field="base64"
            )
        if command.base64 is None:
            return attachments[0]
        return decode_base64(command.base64, self._config.max_bytes, "base64")

    def _make_room(self, session: Session[Any]) -> None:
        own = self._files[session]
        while len(own) > self._config.max_images:
            del own[min(own, key=lambda sha256: own[sha256].touched)]
        all_files = [
            (files, sha256, file)
            for files in list(self._files.values())
            for sha256, file in files.items()
        ]
        excess = sum(file.num_bytes for _, _, file in all_files) - self._config.max_upload_bytes
        for files, sha256, file in sorted(all_files, key=lambda each: each[2].touched):
            if excess <= 0:
                return
            del files[sha256]
            excess -= file.num_bytes
