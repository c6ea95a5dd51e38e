"""Rules for the trust of a server of language models in code and addresses of others."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ts_stateful.config.check.finding import Finding, warning
from ts_stateful.config.schema import HandlerConfig

__all__ = ["check_safety"]


def check_safety(handler: HandlerConfig) -> Iterator[Finding]:
    """Find settings that make a server trust others more than it must."""
    if handler.trust_remote_code:
        yield warning(
            "handler.trustRemoteCode",
            "runs code that comes with the model",
            "leave it out unless you have read that code",
        )
    if "*" in handler.allowed_origins:
        yield warning(
            "handler.allowedOrigins",
            "every web page that a user of this network opens can use the server",
            "name the origins of your own pages",
        )
    if "http" in handler.media.allowed_schemes:
        yield warning(
            "handler.media.allowedSchemes",
            "over `http`, the network can read and change images",
            "allow https and data only",
        )
    store = urlsplit(handler.store.url or "")
    if store.scheme == "s3" and store.netloc in handler.media.allowed_buckets:
        yield warning(
            "handler.media.allowedBuckets",
            "this bucket also holds the sessions, so a client could request images of other sessions",
            "keep public images in a separate bucket",
        )
    if handler.media.allow_private_addresses:
        yield warning(
            "handler.media.allowPrivateAddresses",
            "clients can make the server read from this machine and its network, cloud metadata included",
            "leave it out, or name the hosts in allowedHosts",
        )
