"""The admission of requests: their principal, and the ids under which engines get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ts_stateful.frontend.audit import AuditLog
from ts_stateful.frontend.request_quotas import RequestQuotas
from ts_stateful.principals.authenticator import Authenticator, Call, NoPrincipals
from ts_stateful.principals.namespace import NO_NAMESPACE, Namespace
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Fork, Open, Step
from ts_stateful.protocol.session_ids import check_strength

__all__ = ["Admission", "call_of"]

_MAX_CREDENTIAL = 16_384  # bytes; a longer input of a message is a document or a tensor


class Admission:
    """The rules for clients of one server: their principals, the ids that they may choose, their quotas and web pages."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        client_ids: Literal["any", "strong"] = "any",
        audit: AuditLog | None = None,
        quotas: RequestQuotas | None = None,
        allowed_origins: Sequence[str] = (),
    ) -> None:
        self._authenticator = authenticator or NoPrincipals()
        self._client_ids = client_ids
        self.audit = audit or AuditLog()
        self._quotas = quotas
        self._allowed_origins = allowed_origins

    def namespace_of(self, call: Call) -> Namespace:
        """Return the namespace of a request's principal.

        Raises:
            Unauthenticated, KeysUnavailable: see `Authenticator`.
        """
        principal = self._authenticator.principal_of(call)
        return NO_NAMESPACE if principal is None else Namespace(principal)

    def check_bytes(self, principal: str | None, num_bytes: int) -> None:
        """Check the size of a request before it is parsed.

        Raises:
            QuotaExceeded: the principal has too many bytes in flight.
        """
        if self._quotas is not None:
            self._quotas.check(principal, num_bytes)

    def check_origin(self, origin: str | None) -> None:
        """Check that a request comes from no web page, or from one of the allowed origins; `*` allows all.

        Browsers send `Origin` with every POST of a page, also of a page whose name was made to lead to this server. Other
        clients do not. A GET without a body opens nothing.

        Raises:
            InvalidRequest: a page of another origin sent it.
        """
        allowed = self._allowed_origins
        if origin is not None and origin not in allowed and "*" not in allowed:
            raise InvalidRequest(
                f"web pages of {origin[:100]} may not use this server; allow them in handler.allowedOrigins",
                field="origin",
            )

    def check(self, message: Submit) -> None:
        """Check the id that a request may open a session under, and its choices. Ids of principals need no strength.

        Raises:
            InvalidRequest: others could guess the id, or the choices are more than may be in flight.
        """
        if self._quotas is not None:
            self._quotas.check_choices(message.principal, message.choices)
        command = message.command
        if self._client_ids == "any" or message.principal is not None:
            return
        if isinstance(command, Fork) and command.new_session_id is not None:
            check_strength(command.new_session_id, "new_session_id")
        elif isinstance(command, Open | Step) and command.session_id is not None:
            check_strength(command.session_id)


def call_of(values: Mapping[str, Any], *, in_message: bool) -> Call:
    """Return the names and values that are text. TorchServe's other headers describe parts of the body."""
    pairs = tuple(
        (name.lower(), value if isinstance(value, str) else bytes(value).decode("utf-8", "replace"))
        for name, value in values.items()
        if isinstance(value, str | bytes | bytearray) and len(value) <= _MAX_CREDENTIAL
    )
    return Call(pairs, in_message=in_message)
