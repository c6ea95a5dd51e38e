"""All images of one request, from wherever they come, in their order.

Owns the count, the order, the threads and the names of the fields in errors. Where bytes come from
is `fetch`'s and `encoded`'s, what they mean is `decode`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from PIL.Image import Image as Picture

from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decode import decode_image
from ts_stateful.media.encoded import decode_base64
from ts_stateful.media.fetch import Fetcher
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Image

__all__ = ["ImageFile", "MediaLoader", "UploadedImage"]

T = TypeVar("T")


class UploadedImage(Image, frozen=True, kw_only=True):
    """An image that was uploaded before, with its file; no document of the wire protocol is one."""

    data: bytes


@dataclass(frozen=True)
class ImageFile:
    """An image as it came: the bytes of a file, not looked into yet; `field` names it in errors."""

    data: bytes
    config: MediaConfig
    field: str

    def decode(self) -> Picture:
        """Its picture, as `decode_image` makes it.

        Raises:
            MediaError: there is none, or it is too large.
        """
        return decode_image(self.data, self.config, self.field)


class MediaLoader:
    """Loads the images of requests; thread-safe.

    At most `config.workers` are in work at the same time, over all callers. Owns its threads and,
    from here on, `fetcher` (by default one of its own); both end with `close`.
    """

    def __init__(self, config: MediaConfig, fetcher: Fetcher | None = None) -> None:
        self._config = config
        self._fetcher = fetcher or Fetcher(config)
        self._workers = ThreadPoolExecutor(config.workers, thread_name_prefix="media")

    def close(self) -> None:
        """Ends the threads when their work is done; a load after this raises a RuntimeError."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._fetcher.close()

    def load(
        self,
        images: Sequence[Image],
        attachments: Sequence[bytes],
        read: Callable[[ImageFile], T],
    ) -> list[T]:
        """What `read` makes of `images`, then of `attachments` (file parts of a form), in their order.

        `read` runs on several threads at the same time. Blocks until all are there, or until one
        has failed and those before it are there.

        Raises:
            InvalidRequest: more than `max_images`; nothing was fetched.
            MediaError: one of them was refused; `field` names it: `images[0].url`,
                `images[0].base64`, `images[0].upload` or `files[0]`. What `read` raises comes out too.
        """
        if len(images) + len(attachments) > self._config.max_images:
            message = f"a request takes at most {self._config.max_images} images"
            raise InvalidRequest(message, field="images")
        files: list[Callable[[], ImageFile]] = [
            *(functools.partial(self._fetched, *each) for each in enumerate(images)),
            *(functools.partial(self._attached, *each) for each in enumerate(attachments)),
        ]
        futures = [self._workers.submit(lambda file: read(file()), file) for file in files]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _fetched(self, index: int, image: Image) -> ImageFile:
        if image.url is not None:
            field = f"images[{index}].url"
            data = self._fetcher.fetch(image.url, field)
        elif isinstance(image, UploadedImage):
            field = f"images[{index}].upload"
            data = image.data
        else:
            field = f"images[{index}].base64"
            data = decode_base64(image.base64 or "", self._config.max_bytes, field)
        return ImageFile(data, self._config, field)

    def _attached(self, index: int, data: bytes) -> ImageFile:
        return ImageFile(data, self._config, f"files[{index}]")
