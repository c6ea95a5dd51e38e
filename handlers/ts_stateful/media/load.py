"""All images of one request in their order: fetched, decoded from base64, uploaded or attached."""

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
    """An image that was uploaded before, with its file; not part of the wire protocol."""

    data: bytes


@dataclass(frozen=True)
class ImageFile:
    """The undecoded bytes of an image's file; `field` names it in errors."""

    data: bytes
    config: MediaConfig
    field: str

    def decode(self) -> Picture:
        """Decode the image; see `decode_image`.

        Raises:
            MediaError: the bytes are not an image, or it is too large.
        """
        return decode_image(self.data, self.config, self.field)


class MediaLoader:
    """The threads that load the images of requests; thread-safe.

    At most `config.workers` images are loaded at the same time, over all callers. `close` ends the threads and `fetcher`, by
    default one of its own.
    """

    def __init__(self, config: MediaConfig, fetcher: Fetcher | None = None) -> None:
        self._config = config
        self._fetcher = fetcher or Fetcher(config)
        self._workers = ThreadPoolExecutor(config.workers, thread_name_prefix="media")

    def close(self) -> None:
        """End the threads when their work is done; a load after this raises a RuntimeError."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._fetcher.close()

    def load(
        self,
        images: Sequence[Image],
        attachments: Sequence[bytes],
        read: Callable[[ImageFile], T],
    ) -> list[T]:
        """Call `read` on `images`, then on `attachments` (file parts of a form); return the results in this order.

        `read` runs on several threads at the same time. Blocks until all are done, or until one has failed and those before
        it are done. Errors of `read` are raised too.

        Raises:
            InvalidRequest: there are more than `max_images`; nothing was fetched.
            MediaError: an image was refused; `field` names it: `images[0].url`, `images[0].base64`, `images[0].upload` or
                `files[0]`.
        """
        if len(images) + len(attachments) > self._config.max_images:
            limit = self._config.max_images
            message = f"a request takes at most {limit} images; send fewer"
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
