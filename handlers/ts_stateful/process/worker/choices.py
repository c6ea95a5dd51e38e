"""Requests for several replies to one prompt, each of which is a request of its own to the engine."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from msgspec import structs

from ts_stateful.protocol.chat import RawPrompt
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.requests import Prompt
from ts_stateful.protocol.session_ids import new_session_id
from ts_stateful.protocol.tenants import internal_id

__all__ = ["Choices"]

_SEEDS = 2**63


@dataclass
class _Group:
    """The requests that make one: their ids in the order of the choices, and those that are not answered."""

    ids: list[str]
    open: set[str] = field(default_factory=set)
    accepted: bool = False


class Choices:
    """The groups of one dispatcher. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}  # by the client's request
        self._parents: dict[str, str] = {}  # by the request of a choice

    def split(self, message: Submit) -> list[Submit]:
        """Return the requests for the choices of a message without a session.

        All go to one engine, which computes the prompt once. Each has a seed of its own. The choices of several texts are those
        of the first one, then those of the next.
        """
        command = message.command
        assert isinstance(command, Prompt)
        texts = command.texts if isinstance(command, RawPrompt) else ()
        per_text = message.choices // max(1, len(texts))
        ids = [f"{message.request_id}.{index}" for index in range(message.choices)]
        affinity = message.affinity or (ids[0],)
        made = []
        for index, name in enumerate(ids):
            first = index - index % per_text
            seed = None if command.seed is None else (command.seed + index - first) % _SEEDS
            if isinstance(command, RawPrompt):
                command = structs.replace(command.with_text(texts[index // per_text]), others=())
            session_id = command.session_id if index == 0 else _session_id(message.principal)
            made.append(
                structs.replace(
                    message,
                    request_id=name,
                    command=structs.replace(command, seed=seed, session_id=session_id),
                    choices=1,
                    affinity=(affinity[0], affinity[0]) if index else affinity,
                    num_bytes=message.num_bytes if index == 0 else 0,
                )
            )
        with self._lock:
            self._groups[message.request_id] = _Group(ids, set(ids))
            self._parents.update(dict.fromkeys(ids, message.request_id))
        return made

    def merge(self, event: Event) -> tuple[Event | None, list[str]]:
        """Return an event as one of the client's request, None if it has no such meaning, and the requests to be dropped.

        The answer to all but the last choice is a `CHOICE`. The first error is the end.
        """
        with self._lock:
            parent = self._parents.get(event.request_id)
            if parent is None:
                return event, []
            group = self._groups[parent]
            index = group.ids.index(event.request_id)
            found = structs.replace(event, request_id=parent, choice=index, session_id=None)
            if event.kind is EventKind.ACCEPTED:
                is_first, group.accepted = not group.accepted, True
                return (found if is_first else None), []
            if event.kind is not EventKind.LAST:
                return found, []
            group.open.discard(event.request_id)
            if event.status == 200 and group.open:
                return structs.replace(found, kind=EventKind.CHOICE), []
            return found, self._end(parent)

    def drop(self, request_id: str) -> list[str]:
        """Forget a client's request; return the requests to be dropped: its choices, or itself."""
        with self._lock:
            return self._end(request_id) if request_id in self._groups else [request_id]

    def _end(self, parent: str) -> list[str]:
        group = self._groups.pop(parent)
        for name in group.ids:
            self._parents.pop(name, None)
        return sorted(group.open)


def _session_id(principal: str | None) -> str:
    name = new_session_id()
    return name if principal is None else internal_id(principal, name)
