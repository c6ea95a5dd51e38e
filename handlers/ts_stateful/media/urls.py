"""URLs of images, parsed once and strictly.

The parsed scheme, host, port and path are used for the connection and the request, so two parsers cannot disagree. Every
disguise of a host that browsers and libraries forgive is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import urljoin

from ts_stateful.protocol.errors import MediaForbidden, MediaInvalid

__all__ = ["Object", "Target", "parse_object_url", "parse_url", "resolve_redirect", "scheme_of"]

_MAX_CHARS = 8192
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_AUTHORITY = re.compile(r"//([^/?#]*)")
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(.*))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_OBJECT = re.compile(r"s3://([^/]*)/(.+)", re.IGNORECASE | re.DOTALL)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NO_CHAR = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MAX_KEY_BYTES = 1024
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Target:
    """The server of an image and the path to request."""

    scheme: str  # http or https
    host: str  # a lower-case DNS name, or an address in canonical text without brackets
    port: int
    path: str  # with the query, never empty, ASCII

    @property
    def is_address(self) -> bool:
        """Return True if the host is an IP address, not a name."""
        return ":" in self.host or self.host.rpartition(".")[2].isdigit()

    @property
    def authority(self) -> str:
        """Return host and port for the Host header: IPv6 in brackets, no default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the URL that parses to this target."""
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True)
class Object:
    """An object in S3."""

    bucket: str
    key: str


def parse_object_url(url: str, field: str) -> Object:
    """Parse `s3://bucket/key`; the key is all text after the slash, without any decoding.

    Raises:
        MediaInvalid: the bucket's name is not valid (an access point is no bucket), or the key is not.
    """
    match = _OBJECT.fullmatch(url)
    if match is None or not _BUCKET.fullmatch(match[1]):
        raise MediaInvalid(
            "the URL is not of the form s3://bucket/key, with a bucket of 3 to 63 characters of a-z 0-9 . -",
            field=field,
        )
    key = match[2]
    # Libraries may read `..` as a way into another bucket.
    if _NO_CHAR.search(key) or {".", ".."} & set(key.split("/")):
        raise MediaInvalid(
            "the object's key has control characters, `.` or `..`; remove them", field=field
        )
    if len(key.encode()) > _MAX_KEY_BYTES:
        raise MediaInvalid(f"the object's key has more than {_MAX_KEY_BYTES} bytes", field=field)
    return Object(match[1], key)


def scheme_of(url: str, allowed: Collection[str], field: str) -> str:
    """Return the scheme of `url` in lower case.

    Raises:
        MediaInvalid: the URL is empty.
        MediaForbidden: the scheme is not one of `allowed`, or missing (a local path).
    """
    if not url:
        raise MediaInvalid("the URL is empty", field=field)
    match = _SCHEME.match(url)
    scheme = match.group(1).lower() if match else None
    if scheme is None or scheme not in allowed:
        names = ", ".join(f"{name}:" for name in allowed) or "none"
        raise MediaForbidden(f"the URL's scheme is not allowed; allowed: {names}", field=field)
    return scheme


def parse_url(url: str, allowed: Collection[str], field: str) -> Target:
    """Parse an `http:` or `https:` URL; a fragment is dropped.

    Raises:
        MediaInvalid: the URL is malformed: whitespace, control characters, no host, port out of
            range, not ASCII.
        MediaForbidden: the scheme is not in `allowed`, or the host is disguised: user information,
            a backslash, a non-ASCII host, an address that is not in its canonical form, a trailing
            dot.
    """
    scheme = scheme_of(url[:_MAX_CHARS], allowed, field)
    if len(url) > _MAX_CHARS:
        raise MediaInvalid(f"the URL has more than {_MAX_CHARS} characters", field=field)
    _refuse_unsafe_characters(url, field)
    match = _AUTHORITY.match(url, len(scheme) + 1)
    if match is None or not match.group(1):
        raise MediaInvalid("the URL names no host", field=field)
    host, port = _split_authority(match.group(1), field)
    path = url[match.end() :].partition("#")[0]
    if not path.isascii():
        raise MediaInvalid("the URL's path and query must be percent-encoded", field=field)
    return Target(
        scheme=scheme,
        host=_canonical_host(host, field),
        port=_DEFAULT_PORTS[scheme] if port is None else port,
        path=path if path.startswith("/") else f"/{path}",
    )


def resolve_redirect(base: Target, location: bytes, allowed: Collection[str], field: str) -> Target:
    """Parse the target of a redirect from `base`, as strictly as a URL from a client.

    Raises:
        MediaInvalid, MediaForbidden: see `parse_url`.
    """
    try:
        text = location.decode("ascii")
        # Before joining, because `urljoin` strips these characters.
        _refuse_unsafe_characters(text, field)
        url = urljoin(base.url, text)
    except ValueError:  # not ASCII, or brackets that do not pair
        raise MediaInvalid("the image's server redirects to a malformed URL", field=field) from None
    return parse_url(url, allowed, field)


def _refuse_unsafe_characters(url: str, field: str) -> None:
    if _UNSAFE.search(url):
        raise MediaInvalid("the URL contains whitespace or control characters", field=field)
    if "\\" in url:
        raise MediaForbidden("the URL contains a backslash", field=field)


def _split_authority(authority: str, field: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise MediaForbidden("the URL contains user information", field=field)
    match = _HOST_AND_PORT.fullmatch(authority)
    if match is None or not match.group(1):
        raise MediaInvalid("the URL names no host", field=field)
    host, port = match.groups()
    if port is None:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise MediaInvalid("the URL's port is not a number from 1 to 65535", field=field)
    return host, int(port)


def _canonical_host(host: str, field: str) -> str:
    if not host.isascii():
        # Parsers differ in how they map Unicode to a name.
        raise MediaForbidden("the URL's host is not ASCII; write it in punycode", field=field)
    host = host.lower()  # after the check: some letters that are not ASCII have ASCII lower cases
    try:
        if host.startswith("["):
            return str(IPv6Address(_without_scope(host[1:-1])))
        labels = host.split(".")
        if _NUMBER.fullmatch(labels[-1]):
            # Resolvers also read 2130706433, 0x7f.1 and 0177.0.0.1 as addresses; only the canonical
            # form is accepted.
            return str(ip_address(host))
    except ValueError:
        raise MediaForbidden("the URL's host is not a canonical address", field=field) from None
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise MediaForbidden("the URL's host is not a plain DNS name", field=field)
    return host


def _without_scope(address: str) -> str:
    if "%" in address:
        raise ValueError("an address with a scope names a link of this machine")
    return address
