"""The settings of `handler.media` as a frozen struct; see `schema`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ts_stateful.config.ranges import Count, Positive, Settings

__all__ = ["MediaConfig"]

_Port = Annotated[int, Meta(ge=1, le=65535)]


class MediaConfig(Settings, frozen=True, kw_only=True):
    """`handler.media`: the allowed images and clips of audio, and their sources. Safe by default.

    What is said of images holds for clips, too.
    """

    allowed_schemes: tuple[Literal["https", "http", "data"], ...] = ("https", "data")
    """Where images may come from."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, or `*.example.com` for subdomains. Empty: every public host."""
    allowed_buckets: tuple[str, ...] = ()
    """Buckets of `s3://bucket/key` (extra `s3`): names, or `*.example`. Empty: none."""
    allow_private_addresses: bool = False
    """Allow loopback, private and link-local addresses, cloud metadata among them."""
    allowed_ports: tuple[_Port, ...] = ()
    """Ports of image servers, redirects included. Empty: 443, and 80 if `allowedSchemes` has `http`."""
    max_bytes: Count = 20_000_000
    """Bytes of one image."""
    max_pixels: Count = 40_000_000
    """Pixels of one image."""
    max_audio_sec: Positive = 600.0
    """Seconds of one clip of audio, if the model takes as much."""
    max_images: Count = 8
    """Images of one request, and uploads of one session."""
    max_upload_bytes: Count = 500_000_000
    """Bytes of all uploads of an engine."""
    timeout_sec: Positive = 10.0
    """Seconds for one image, redirects included."""
    max_redirects: Annotated[int, Meta(ge=0)] = 3
    """Redirects of one image."""
    fetches: Count = 32
    """Images fetched at the same time."""
    fetches_per_client: Count = 16
    """Images of one client fetched at the same time; more wait. Requests without a tenant count as one client."""
    queued_fetches: Count = 256
    """Images of one client that are being fetched or wait for it. A request beyond that is refused with 429."""
    workers: Count = 4
    """Processes that decode images; the first starts with the engine, the others when they are needed."""
    decode_timeout_sec: Positive = 20.0
    """Seconds for decoding one image."""

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports of image servers."""
        return self.allowed_ports or tuple(
            port
            for scheme, port in (("https", 443), ("http", 80))
            if scheme in self.allowed_schemes
        )
