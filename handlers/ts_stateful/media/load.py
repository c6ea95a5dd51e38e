"""All images of one request, from wherever they come, in their order.

Owns the count, the order, the threads and the names of the fields in errors. Where bytes come from
is `fetch`'s and `encoded`'s, what they mean is `decode`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from PIL.Image import Image as Picture

from ts_stateful.config import MediaConfig
from ts_stateful.errors import InvalidRequest
from ts_stateful.media.decode import decode_image
from ts_stateful.media.encoded import decode_base64
from ts_stateful.media.fetch import Fetcher
from ts_stateful.protocol import Image

__all__ = ["MediaLoader"]


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

    def load(self, images: Sequence[Image], attachments: Sequence[bytes] = ()) -> list[Picture]:
        """The pictures of `images`, then of `attachments` (file parts of a form), in their order.

        All are RGB, as `decode_image` makes them. Blocks until all are there, or until one has
        failed and those before it are there.

        Raises:
            InvalidRequest: more than `max_images`; nothing was fetched.
            MediaError: one of them was refused; `field` names it: `images[0].url`,
                `images[0].base64` or `files[0]`.
        """
        if len(images) + len(attachments) > self._config.max_images:
            message = f"a request takes at most {self._config.max_images} images"
            raise InvalidRequest(message, field="images")
        jobs = [
            *(functools.partial(self._load_image, *each) for each in enumerate(images)),
            *(functools.partial(self._load_attachment, *each) for each in enumerate(attachments)),
        ]
        futures = [self._workers.submit(job) for job in jobs]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _load_image(self, index: int, image: Image) -> Picture:
        if image.url is not None:
            field = f"images[{index}].url"
            data = self._fetcher.fetch(image.url, field)
        else:
            field = f"images[{index}].base64"
            data = decode_base64(image.base64 or "", self._config.max_bytes, field)
        return decode_image(data, self._config, field)

    def _load_attachment(self, index: int, data: bytes) -> Picture:
        return decode_image(data, self._config, f"files[{index}]")
