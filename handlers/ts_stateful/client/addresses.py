"""URLs of servers: schemes, default ports, certificates and proxies."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from ts_stateful.client.errors import ClientError

__all__ = ["Address", "is_this_machine", "parse_address"]

_DEFAULT_PORTS = {"grpc": 7070, "grpcs": 443, "http": 8080, "https": 443}


class Address(NamedTuple):
    """The address of a server. `path` is a prefix or a whole endpoint; only HTTP has one."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_grpc(self) -> bool:
        """Return True if requests to it go over gRPC."""
        return self.scheme in ("grpc", "grpcs")

    @property
    def authority(self) -> str:
        """Return `host:port`, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def through_proxy(self) -> bool:
        """Return True if the environment's proxies are used; they never are for this machine."""
        return not is_this_machine(self.host)

    def tls_context(self, ca_file: str | Path | None) -> ssl.SSLContext:
        """Return a context that trusts the certificates in `ca_file`, or the system's.

        Raises:
            ValueError: the file holds no certificates.
        """
        if self.scheme in ("https", "grpcs"):
            if ca_file is not None:
                Path(ca_file).open("rb").close()  # the error of OpenSSL names no file
            try:
                return ssl.create_default_context(cafile=ca_file)
            except ssl.SSLError as error:
                raise ValueError(f"ca_file {ca_file} has no PEM certificates: {error}") from None
        # Not used, so it trusts no certificate: loading the system's takes longer than a request.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def http_client(self, ca_file: str | Path | None, **options: Any) -> httpx.Client:
        """Return a client with the certificates and proxies for this address, where no option replaces them.

        Raises:
            ValueError: a file holds no certificates, or a variable names no proxy that can be used.
            ClientError: it names a SOCKS proxy, and socksio is not installed.
        """
        options = {"verify": self.tls_context(ca_file), "trust_env": self.through_proxy, **options}
        try:
            return httpx.Client(**options)
        except httpx.InvalidURL as error:
            names = "http_proxy, https_proxy, all_proxy or no_proxy"
            raise ValueError(f"{names} cannot be used: {error}") from None
        except ImportError as missing:  # of a SOCKS proxy
            raise ClientError(str(missing)) from missing


def is_this_machine(host: str) -> bool:
    """Return True for a loopback address, and for `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(url: str) -> Address:
    """Parse the URL of a server.

    Raises:
        ValueError: the URL is not one of a server.
    """
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL like grpc://127.0.0.1:7070 or https://host")
    if parts.username or parts.query or parts.fragment:
        raise ValueError(
            f"the URL of {parts.hostname} has a user, a query or a fragment; remove it"
        )
    path = parts.path.rstrip("/")
    if parts.scheme.startswith("grpc") and path:
        raise ValueError(f"the gRPC URL {url!r} has a path; remove it")
    port = parts.port  # raises for a port that is not a number up to 65535
    return Address(
        parts.scheme, parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port, path
    )
