"""From a server's URL to the transport that speaks to it.

Owns schemes, default ports, certificates and proxies; knows nothing of sessions.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import grpc

from ts_stateful.client.errors import ClientError
from ts_stateful.client.transports.rest import HttpTransport
from ts_stateful.client.transports.rpc import GrpcTransport, Profile, open_channel
from ts_stateful.client.transports.transport import Transport

__all__ = [
    "Address",
    "grpc_transport",
    "http_transport",
    "is_sagemaker",
    "parse_address",
    "sagemaker_transport",
    "tls_context",
]

_DEFAULT_PORTS = {"grpc": 7070, "grpcs": 443, "http": 8080, "https": 443}


class Address(NamedTuple):
    """Where a server is; `path` is a prefix, or an endpoint of its own, and only HTTP has one."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_grpc(self) -> bool:
        """Whether it is spoken to by gRPC."""
        return self.scheme in ("grpc", "grpcs")

    @property
    def authority(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def through_proxy(self) -> bool:
        """Whether the environment's proxies are asked: never on the way to this machine itself."""
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"


def parse_address(url: str) -> Address:
    """The address in a URL.

    Raises:
        ValueError: it is not one of a server.
    """
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL like grpc://127.0.0.1:7070 or https://host")
    if parts.username or parts.query or parts.fragment:
        raise ValueError(f"a server's URL has neither user, query nor fragment: {parts.hostname}")
    path = parts.path.rstrip("/")
    if parts.scheme.startswith("grpc") and path:
        raise ValueError(f"a gRPC URL has no path: {url!r}")
    port = parts.port  # raises for what is no port
    return Address(
        parts.scheme,
        parts.hostname,
        _DEFAULT_PORTS[parts.scheme] if port is None else port,
        path,
    )


def grpc_transport(
    address: Address,
    model: str,
    headers: Mapping[str, str],
    *,
    max_body_bytes: int,
    ca_file: str | Path | None,
    profile: str | None,
    header: str,
) -> GrpcTransport:
    """A transport to a `grpc` or `grpcs` address; headers become metadata, and so does the session's id, named `header`."""
    credentials = None
    if address.scheme == "grpcs":
        trusted = Path(ca_file).read_bytes() if ca_file else None
        credentials = grpc.ssl_channel_credentials(trusted)
    return GrpcTransport(
        partial(open_channel, address.authority, credentials, through_proxy=address.through_proxy),
        model=model,
        metadata=[(name.lower(), value) for name, value in headers.items()],
        session_header=header,
        max_body_bytes=max_body_bytes,
        profile=None if profile is None else Profile(profile),
    )


def http_transport(
    address: Address,
    model: str,
    headers: Mapping[str, str],
    *,
    max_body_bytes: int,
    ca_file: str | Path | None,
    header: str,
) -> HttpTransport:
    """A transport to an `http` or `https` address; `header` is the name of the sequence-id header."""
    path = address.path
    if not path.endswith("/invocations"):  # what SageMaker has instead of a path per model
        path += f"/predictions/{quote(model, safe='')}"
    return HttpTransport(
        f"{address.scheme}://{address.authority}{path}",
        headers=headers,
        session_header=header,
        max_body_bytes=max_body_bytes,
        tls=tls_context(address, ca_file),
        through_proxy=address.through_proxy,
    )


def is_sagemaker(url: str) -> bool:
    """Whether a URL names an endpoint of SageMaker and not a server."""
    return url.startswith("sagemaker:")


def sagemaker_transport(url: str, *, max_body_bytes: int, ca_file: str | Path | None) -> Transport:
    """A transport to `sagemaker://<endpoint>?region=...&profile=...&endpoint_url=...`.

    Raises:
        ClientError: boto3 is not installed.
        ValueError: the URL cannot be meant.
    """
    try:
        from ts_stateful.client.transports import sagemaker  # noqa: PLC0415 - others do without boto3
    except ImportError as missing:
        raise ClientError(str(missing)) from missing
    address = sagemaker.parse_sagemaker_url(url)
    return sagemaker.SageMakerTransport(
        address,
        max_body_bytes=max_body_bytes,
        ca_file=None if ca_file is None else str(ca_file),
    )


def tls_context(address: Address, ca_file: str | Path | None) -> ssl.SSLContext:
    """What a client of an `http` or `https` address trusts: the certificates in `ca_file`, or the system's."""
    if address.scheme == "https":
        return ssl.create_default_context(cafile=ca_file)
    # Trusts nobody, as nobody will be asked; loading the system's certificates takes longer than a request.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
