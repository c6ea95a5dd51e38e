"""Rules for access: the trust in headers, keys and ids of clients."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from ts_stateful.config.access import HeaderAuth, JwtAuth
from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.schema import Config
from ts_stateful.protocol.profile import Profile

__all__ = ["check_access"]

_OTHER_USES = frozenset(
    {"content-length", "content-type", "describe", "host", "transfer-encoding", "url_path"}
)


def check_access(config: Config) -> Iterator[Finding]:
    """Find settings of access that protect less than they seem to."""
    settings = config.engine
    if isinstance(settings.auth, HeaderAuth):
        yield from _check_header(settings.auth)
    if isinstance(settings.auth, JwtAuth):
        yield from _check_keys(settings.auth)
    if settings.auth != "none" and settings.auth.header.lower() in _OTHER_USES:
        yield error(
            "handler.auth.header",
            f"{settings.auth.header} has another meaning",
            "name a header of its own, for instance X-Principal",
        )
    if settings.auth != "none" and config.frontend.profile is Profile.SEQUENCE:
        yield warning(
            "handler.auth",
            "in the sequence profile TorchServe gives out places by the clients' own ids: principals that use the same id"
            " wait for each other",
            "use `continuousBatching: true`",
        )
    yield from _check_quotas(config)
    if settings.client_ids == "strong" and settings.auth != "none":
        yield warning(
            "handler.clientIds",
            "has no effect with principals, whose ids others cannot use",
            "leave it out",
        )
    elif settings.client_ids == "strong" and config.state is not None:
        yield warning(
            "handler.clientIds",
            "refuses the short sequence ids that clients of TorchServe and Triton choose",
            "leave it out, or set handler.auth",
        )


def _check_header(auth: HeaderAuth) -> Iterator[Finding]:
    if auth.header.lower() == "authorization":
        yield error(
            "handler.auth.header",
            "Authorization holds a secret, which would become the name of the principal",
            "let the proxy set a header of its own, or use `mode: jwt`",
        )
    yield warning(
        "handler.auth.header",
        f"a client that reaches TorchServe's port past the proxy can send {auth.header} itself, and be any principal",
        "let only the proxy reach the port, and let it replace the header in every request",
    )


def _check_quotas(config: Config) -> Iterator[Finding]:
    quotas = config.engine.quotas
    if quotas.principals and config.engine.auth == "none":
        yield warning(
            "handler.quotas.principals",
            "has no effect without principals",
            "set handler.auth, or leave it out",
        )
    all_quotas = (quotas, *quotas.principals.values())
    if config.state is not None and any(quota.tokens_per_minute for quota in all_quotas):
        yield error(
            "handler.quotas.tokensPerMinute",
            "steps of a model with recurrent states have no tokens",
            "use turnsInFlight",
        )


def _check_keys(auth: JwtAuth) -> Iterator[Finding]:
    url = urlsplit(auth.jwks)
    if "://" not in auth.jwks or url.scheme == "https":
        return
    if url.scheme != "http" or not _is_this_machine(url.hostname or ""):
        yield error(
            "handler.auth.jwks",
            f"{url.scheme}: the network could replace the keys, and with them every principal",
            "use https, or a file",
        )


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
