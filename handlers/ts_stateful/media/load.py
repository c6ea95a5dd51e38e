"""All images or clips of one request in their order: fetched, decoded from base64, uploaded or attached.

What is said of images holds for clips of audio, too. Fetches and decoders have threads of their own, so an image in the
request itself never waits for a fetch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from PIL.Image import Image as Picture

from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.frames import Audible, Samples
from ts_stateful.media.decoder.pool import DecoderPool, Lease
from ts_stateful.media.encoded import decode_base64
from ts_stateful.media.fair_slots import FairSlots, Ticket
from ts_stateful.media.fetch import Fetcher
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Media

__all__ = ["MediaDecoder", "MediaFile", "MediaLoader", "UploadedMedia", "named"]

T = TypeVar("T")


class UploadedMedia(Media, frozen=True, kw_only=True):
    """A file that was uploaded before; not part of the wire protocol."""

    data: bytes
    named_as: str = "images"

    @property
    def kind(self) -> str:
        """See `Media`."""
        return self.named_as


def named(media: Iterable[Media]) -> Iterator[tuple[str, Media]]:
    """Yield files with their names in errors: each kind is counted by itself, as in `images[0]`, `audio[0]`."""
    counts: Counter[str] = Counter()
    for file in media:
        yield f"{file.kind}[{counts[file.kind]}]", file
        counts[file.kind] += 1


class MediaDecoder(Protocol):
    """The decoder of a file; see `decoder.pool.Lease`."""

    def decode_image(self, data: bytes, field: str, /) -> Picture:
        """Return the pixels."""

    def decode_audio(self, data: bytes, field: str, wanted: Audible, /) -> Samples:
        """Return the samples."""


@dataclass(frozen=True)
class MediaFile:
    """The undecoded bytes of a file; `field` names it in errors."""

    data: bytes
    decoder: MediaDecoder
    field: str

    @property
    def is_audio(self) -> bool:
        """True for a clip, False for an image: as the request names it, or as a form's file begins."""
        if self.field.startswith(("images", "audio")):
            return self.field.startswith("audio")
        return self.data.startswith((b"RIFF", b"RF64", b"fLaC")) and self.data[8:12] != b"WEBP"

    def decode_image(self) -> Picture:
        """Decode the image; see `Lease.decode_image`.

        Raises:
            MediaError: the bytes are not an image, or it is too large.
        """
        return self.decoder.decode_image(self.data, self.field)

    def decode_audio(self, wanted: Audible) -> Samples:
        """Decode the clip; see `Lease.decode_audio`.

        Raises:
            MediaError: the bytes are not audio, or it is too short or too long.
        """
        return self.decoder.decode_audio(self.data, self.field, wanted)


@dataclass(eq=False)
class _Request:
    """The images of one request. After the first refused image the rest of them is not needed."""

    client: Hashable
    is_over: bool = False


@dataclass(frozen=True)
class _Source:
    """One image: `get` returns its file. If it is `remote`, that waits for another server."""

    field: str
    get: Callable[[], bytes]
    remote: bool = False


class MediaLoader:
    """The loader of the images of requests; thread-safe.

    `config` bounds the fetches and the decoders, over all callers. `close` ends the threads, the decoders and `fetcher`, by
    default one of its own.
    """

    def __init__(self, config: MediaConfig, fetcher: Fetcher | None = None) -> None:
        self._config = config
        self._fetcher = fetcher or Fetcher(config)
        self.decoders = DecoderPool(config)
        self.fetching = FairSlots(config.fetches, config.fetches_per_client, config.queued_fetches)
        self._decoding = FairSlots(config.workers, config.workers)
        self._fetch_threads = ThreadPoolExecutor(config.fetches, "media-fetch")
        self._decode_threads = ThreadPoolExecutor(config.workers, "media-decode")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="media", daemon=True)
        self._thread.start()

    def warm_up(self) -> None:
        """Start the first decoder. Returns at once."""
        self.decoders.warm_up()

    def close(self) -> None:
        """End the threads when their work is done; a load after this raises a RuntimeError. Idempotent."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for pool in (self._fetch_threads, self._decode_threads):
            pool.shutdown(wait=False, cancel_futures=True)
        self._fetcher.close()
        self.decoders.close()

    def load(
        self,
        images: Sequence[Media],
        attachments: Sequence[bytes],
        read: Callable[[MediaFile], T],
        client: Hashable = None,
    ) -> Future[list[T]]:
        """Call `read` on `images`, then on `attachments` (file parts of a form); return a future of the results in this order.

        `read` runs on several threads at the same time. The future is done when all are, or when one has failed and those
        before it are done. It has errors of `read` too. Fetches are shared out between clients; None is one of them.

        Raises, by the future:
            InvalidRequest: there are more than `max_images`; nothing was fetched.
            QuotaExceeded: too many images of the client wait to be fetched already; nothing was fetched.
            MediaError: an image was refused; `field` names it: `images[0].url`, `images[0].base64`, `images[0].upload` or
                `files[0]`.
        """
        if self._loop.is_closed():
            raise RuntimeError("the loader is closed")
        sources = [self._source(field, image) for field, image in named(images)]
        sources += [
            _Source(f"files[{index}]", partial(bytes, data))
            for index, data in enumerate(attachments)
        ]
        return asyncio.run_coroutine_threadsafe(self._load(sources, read, client), self._loop)

    def _source(self, field: str, image: Media) -> _Source:
        limit, url = self._config.max_bytes, image.url
        if isinstance(image, UploadedMedia):
            return _Source(f"{field}.upload", partial(bytes, image.data))
        if url is None:
            field = f"{field}.base64"
            return _Source(field, partial(decode_base64, image.base64 or "", limit, field))
        field = f"{field}.url"
        fetch = partial(self._fetcher.fetch, url, field)
        return _Source(field, fetch, remote=url[:5].lower() != "data:")

    async def _load(
        self, sources: Sequence[_Source], read: Callable[[MediaFile], T], client: Hashable
    ) -> list[T]:
        if len(sources) > self._config.max_images:
            limit = self._config.max_images
            message = f"a request takes at most {limit} images; send fewer"
            raise InvalidRequest(message, field="images")
        request = _Request(client)
        num_remote = sum(source.remote for source in sources)
        tickets = iter(self.fetching.enter(client, request, num_remote))
        tasks = [
            asyncio.ensure_future(
                self._image(source, next(tickets) if source.remote else None, request, read)
            )
            for source in sources
        ]
        for task in tasks:  # an error after the first is of no interest
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return [await task for task in tasks]
        finally:
            request.is_over = True
            self.fetching.abandon(request)
            self._decoding.abandon(request)

    async def _image(
        self,
        source: _Source,
        fetching: Ticket | None,
        request: _Request,
        read: Callable[[MediaFile], T],
    ) -> T:
        get = source.get
        if fetching is None:
            return await self._decode(source.field, get, request, read)
        await fetching.granted
        try:
            if request.is_over:
                raise asyncio.CancelledError
            data = await self._loop.run_in_executor(self._fetch_threads, get)
            # Until it is decoded its bytes are in memory, so it keeps its slot.
            return await self._decode(source.field, partial(bytes, data), request, read)
        finally:
            self.fetching.leave(fetching)

    async def _decode(
        self,
        field: str,
        get: Callable[[], bytes],
        request: _Request,
        read: Callable[[MediaFile], T],
    ) -> T:
        if request.is_over:
            raise asyncio.CancelledError
        (ticket,) = self._decoding.enter(request.client, request, 1)
        await ticket.granted
        try:
            return await self._loop.run_in_executor(
                self._decode_threads, self._read, field, get, read
            )
        finally:
            self._decoding.leave(ticket)

    def _read(self, field: str, get: Callable[[], bytes], read: Callable[[MediaFile], T]) -> T:
        """Read an image on a thread; its pixels are counted until `read` has made something of them."""
        with Lease(self.decoders) as lease:
            return read(MediaFile(get(), lease, field))

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self._loop.close()
