"""The border between a client's session ids and those of its principal.

Requests pass it after parsing and before routing, events before they are written for the client. So engines, logs and stores
have no id that two principals share.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import structs

from ts_stateful.protocol.chat import AnyRequest, Respond
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Fork, Open
from ts_stateful.protocol.tenants import internal_id

__all__ = ["NO_NAMESPACE", "Namespace"]

_NAMING: Final = ("session_id", "forked_from")  # members of answers
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Namespace:
    """The session ids of one request. Without a `principal` they stay as they are."""

    def __init__(self, principal: str | None) -> None:
        self.principal = principal
        self._own: dict[str, str] = {}  # the client's ids by the internal ones

    def inward(self, message: Submit) -> Submit:
        """Return the request as engines get it.

        Raises:
            InvalidRequest: the body claims a tenant, although the principal is the tenant.
        """
        if self.principal is None:
            return message
        command = message.command
        if isinstance(command, Open | Fork) and "tenant" in (command.metadata or {}):
            raise InvalidRequest(
                "this server takes the tenant from the request's principal (`handler.auth`); leave it out",
                field="metadata.tenant",
            )
        return structs.replace(message, command=self._renamed(command), principal=self.principal)

    def outward(self, event: Event) -> Event:
        """Return an event with the client's own ids."""
        if not self._own:
            return event
        session_id = event.session_id and self._own.get(event.session_id, event.session_id)
        is_document = event.kind is EventKind.LAST and event.content_type is None
        body = self._document(event.body) if is_document else event.body
        return structs.replace(event, session_id=session_id, body=body)

    def _renamed(self, command: AnyRequest) -> AnyRequest:
        if command.session_id is not None:
            command = structs.replace(command, session_id=self._internal(command.session_id))
        if isinstance(command, Fork | Respond) and command.new_session_id is not None:
            command = structs.replace(
                command, new_session_id=self._internal(command.new_session_id)
            )
        return command

    def _internal(self, session_id: str) -> str:
        assert self.principal is not None
        name = internal_id(self.principal, session_id)
        self._own[name] = session_id
        return name

    def _document(self, body: bytes) -> bytes:
        fields = _fields_of(body)
        for name in _NAMING:
            if name in fields:
                inner = msgspec.json.decode(fields[name])
                fields[name] = msgspec.Raw(msgspec.json.encode(self._own.get(inner, inner)))
        return msgspec.json.encode(fields)


NO_NAMESPACE: Final = Namespace(None)
