"""The settings of access to a server: principals, ids that clients choose, quotas and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ts_stateful.config.limits import QuotasConfig
from ts_stateful.config.ranges import LONGEST_S, Positive, Settings, has_sound_host

__all__ = ["AccessConfig", "HeaderAuth", "JwtAuth"]

_HeaderName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")]
_Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class HeaderAuth(Settings, frozen=True, tag="header", tag_field="mode"):
    """`handler.auth` with `mode: header`: a proxy authenticates clients and sets a header."""

    header: _HeaderName
    """The HTTP header that names the principal. The proxy has to replace a client's own."""


class JwtAuth(Settings, frozen=True, tag="jwt", tag_field="mode", kw_only=True):
    """`handler.auth` with `mode: jwt`: clients send signed tokens."""

    issuer: _Text
    """The `iss` of accepted tokens."""
    audience: _Text
    """An `aud` of accepted tokens."""
    jwks: _Text
    """The issuer's key set: an https URL, or a file, relative to the archive."""
    tenant_claim: _Text = "sub"
    """The claim that names the principal."""
    header: _HeaderName = "Authorization"
    """The HTTP header with the token, `Bearer <token>` or the token alone."""
    leeway_sec: Annotated[float, Meta(ge=0, le=600)] = 30.0
    """Seconds by which the clocks of issuer and server may differ."""
    jwks_refresh_sec: Annotated[float, Meta(ge=10, le=LONGEST_S)] = 300.0
    """Seconds after which the key set is read again."""
    jwks_timeout_sec: Annotated[float, Meta(gt=0, le=60)] = 5.0
    """Seconds for one reading of the key set."""

    def __post_init__(self) -> None:
        if not has_sound_host(self.jwks):
            raise ValueError(f"`jwks` is neither a URL nor a file: {self.jwks!r}")


class AccessConfig(Settings, frozen=True, kw_only=True):
    """`handler` of any model: the right to use sessions, and its log."""

    auth: Literal["none"] | HeaderAuth | JwtAuth = "none"
    """The source of principals. `none`: an id is all that a session needs."""
    client_ids: Literal["any", "strong"] = "any"
    """With `auth: none`, `strong` refuses new ids of clients that look easier to guess than 128 random bits."""
    audit: Literal["none", "text", "json"] = "none"
    """The form of the audit log: a line for each open, close, fork, adoption and refusal."""
    on_full: Literal["park", "refuse"] = "park"
    """A new session without a place. `park`: the same principal's idle session that was used longest ago leaves memory, if the
    store has it, until it is used again. `refuse`: 429."""
    max_queued_sequences: Annotated[int, Meta(ge=0)] = 0
    """New sessions without a place that wait for one, at each engine; further ones get 429."""
    queued_sequence_sec: Positive = 30.0
    """Seconds that they wait at most, then they get 429."""
    quotas: QuotasConfig = QuotasConfig()
