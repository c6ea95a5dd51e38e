"""The verbs of operators on a server's sessions and engines."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.frontend.audit import shortened
from ts_stateful.process.worker.link import EngineLink
from ts_stateful.protocol.error_bodies import error_from_body
from ts_stateful.protocol.errors import EngineUnavailable, InvalidRequest, SessionNotFound
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.operations import (
    EvictSession,
    ExpireSession,
    ListedSession,
    ListSessions,
    Operation,
    Outcome,
    SetLogLevel,
)
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Close
from ts_stateful.protocol.session_ids import check_session_id
from ts_stateful.protocol.tenants import tenant_digits, tenant_of
from ts_stateful.version import __version__

__all__ = ["Operator"]

logger = logging.getLogger("ts_stateful.admin")

_ANSWER_S = 30.0  # for an engine in a long pass
_CLOSES = 16  # at a time, since they count as requests in flight
_NOT_FOUND = "no engine has this session; `ts-stateful sessions` lists all that are here"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class _Engine(NamedTuple):
    """An engine with the name of its model."""

    model: str
    link: EngineLink

    @property
    def name(self) -> str:
        return f"{self.model}/{self.link.index}"


class Operator:
    """The verbs, each of which returns a document. Errors are `StatefulError`s. Verbs that change something are logged."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def status(self) -> dict[str, Any]:
        """Return the state of the server and of each engine, as engines reported it last."""
        state = "ready" if self._models.is_ready else "not ready"
        return {
            "version": __version__,
            "pid": os.getpid(),
            "status": "draining" if self._models.is_draining else state,
            "requests_in_flight": sum(len(model.mailbox) for model in self._models),
            "engines": [
                {"model": engine.model, "engine": engine.link.index, **engine.link.description}
                for engine in self._engines()
            ],
        }

    async def sessions(self, tenant: str | None = None) -> dict[str, Any]:
        """List the sessions in the engines, those of a tenant if it is given; `missing` engines do not answer."""
        found, missing = await self._list()
        listed = [
            _document(engine, one)
            for engine, outcome in found
            for one in outcome.sessions
            if tenant is None or _is_of(tenant, one.tenant)
        ]
        return {"sessions": listed, "missing": [engine.name for engine in missing]}

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return one of the `sessions`."""
        sessions = (await self.sessions())["sessions"]
        found = [one for one in sessions if one["session_id"] == session_id]
        if not found:
            raise SessionNotFound(_NOT_FOUND)
        return {"sessions": found}

    async def evict(self, session_id: str) -> dict[str, Any]:
        """Remove the tensors of a session from memory; it stays open, and its next turn has them again."""
        return await self._change("evict", session_id, EvictSession(session_id))

    async def expire(self, session_id: str) -> dict[str, Any]:
        """End a session as if its time were up, after the turns that it has."""
        return await self._change("expire", session_id, ExpireSession(session_id))

    async def close(self, session_id: str, model: str | None = None) -> dict[str, Any]:
        """Close a session as its client would, also if only the store has it; of one `model`, or of that which has it."""
        check_session_id(session_id)
        if model is None:
            found = (await self.sessions())["sessions"]
            model = next((s["model"] for s in found if s["session_id"] == session_id), None)
        await self._close(await self._models.find(model), session_id)
        return {"closed": 1, "failed": {}}

    async def end_tenant(self, tenant: str) -> dict[str, Any]:
        """Close all sessions of a tenant that engines have, or have parked; `failed` has the errors by id."""
        found, missing = await self._list(parked=True)
        ids = [
            (engine.model, session_id)
            for engine, outcome in found
            for session_id in _ids_of(tenant, outcome)
        ]
        if missing:
            names = ", ".join(engine.name for engine in missing)
            raise EngineUnavailable(
                f"no session was closed, because an engine does not answer ({names}); try again later",
                retry_after_s=1.0,
            )
        few = asyncio.Semaphore(_CLOSES)

        async def close(model: str, session_id: str) -> None:
            async with few:
                await self._close(await self._models.find(model), session_id)

        results = await asyncio.gather(
            *(close(model, name) for model, name in ids), return_exceptions=True
        )
        failed = {
            name: str(result)
            for (_, name), result in zip(ids, results, strict=True)
            if isinstance(result, BaseException)
        }
        return {"closed": len(ids) - len(failed), "failed": failed}

    def drain(self) -> dict[str, Any]:
        """Take no more sessions, and be not ready; open sessions go on."""
        logger.info("drain: no new sessions")
        self._models.refuse_sessions()
        return self.status()

    def undrain(self) -> dict[str, Any]:
        """Take sessions again."""
        self._models.take_sessions()
        logger.info("undrain: new sessions are taken again")
        return self.status()

    def restart(self, index: int, model: str | None = None) -> dict[str, Any]:
        """Let an engine finish its turns and exit; another one takes its place."""
        names = {one.name for one in self._models}
        if model is None and len(names) > 1:
            raise InvalidRequest(f"name the model: {', '.join(sorted(names))}", field="model")
        engines = [e for e in self._engines() if model in (None, e.model)]
        engine = next((e for e in engines if e.link.index == index), None)
        if engine is None:
            known = ", ".join(one.name for one in self._engines())
            raise InvalidRequest(f"no such engine; this server has {known}", field="engine")
        pid = engine.link.supervisor.engine_pid
        try:
            if not engine.link.takes_sessions or pid is None:
                raise ProcessLookupError
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:  # also of one that has exited, which its link has yet to notice
            problem = "the engine is being restarted already"
            raise EngineUnavailable(problem, retry_after_s=1.0) from None
        logger.info("restart: engine %s, process %d", engine.name, pid)
        return {"engine": engine.name, "pid": pid, "status": "restarting"}

    async def set_log_level(self, level: str = "") -> dict[str, Any]:
        """Change the level of the front's log and of the engines'."""
        if level not in _LEVELS:
            raise InvalidRequest(f"{level[:20]!r} is none of {', '.join(_LEVELS)}", field="level")
        logging.getLogger().setLevel(level)
        _, missing = await self._ask_all(SetLogLevel(level))
        return {"level": level, "missing": [engine.name for engine in missing]}

    def _engines(self) -> Iterator[_Engine]:
        return (
            _Engine(model.name, one) for model in self._models for one in model.dispatcher.links
        )

    async def _ask_all(
        self, operation: Operation
    ) -> tuple[list[tuple[_Engine, Outcome]], list[_Engine]]:
        """Return the outcomes by engine, and the engines without one."""
        engines = list(self._engines())
        asked = [asyncio.wrap_future(engine.link.administer(operation)) for engine in engines]
        await asyncio.wait(asked, timeout=_ANSWER_S)
        found, missing = [], []
        for engine, answer in zip(engines, asked, strict=True):
            if answer.done() and answer.exception() is None:
                found.append((engine, answer.result()))
            else:
                answer.cancel()
                missing.append(engine)
        return found, missing

    async def _list(
        self, *, parked: bool = False
    ) -> tuple[list[tuple[_Engine, Outcome]], list[_Engine]]:
        """Return the lists of all engines, and the engines without one."""
        found, missing = await self._ask_all(ListSessions(parked=parked))
        failed = [engine for engine, outcome in found if outcome.error is not None]
        return [one for one in found if one[1].error is None], missing + failed

    async def _change(self, verb: str, session_id: str, operation: Operation) -> dict[str, Any]:
        found, missing = await self._ask_all(operation)
        error = next((outcome.error for _, outcome in found if outcome.error is not None), None)
        if error is not None:
            raise InvalidRequest(error)
        listed = [_document(e, one) for e, outcome in found for one in outcome.sessions]
        if not listed and missing:
            raise EngineUnavailable("an engine does not answer; try again later", retry_after_s=1.0)
        if not listed:
            raise SessionNotFound(_NOT_FOUND)
        logger.info("%s: session %s", verb, shortened(session_id))
        return {"sessions": listed}

    async def _close(self, model: ModelFront, session_id: str) -> None:
        """Send the request of a client. Raises `StatefulError` if it is refused."""
        request_id = uuid.uuid4().hex
        model.mailbox.expect(request_id)
        try:
            message = Submit(request_id, Close(session_id=session_id), profile=Profile.ASGI)
            model.dispatcher.submit(message)
            event = await _last(model, request_id)
        finally:
            model.mailbox.forget(request_id)
        if (error := error_from_body(msgspec.json.decode(event.body))) is not None:
            raise error
        logger.info("close: session %s", shortened(session_id))


async def _last(model: ModelFront, request_id: str) -> Event:
    """Wait for the terminal event of a request."""
    while True:
        for event in await model.mailbox.take(request_id):
            if event.kind is EventKind.LAST:
                return event


def _document(engine: _Engine, listed: ListedSession) -> dict[str, Any]:
    info: dict[str, Any] = msgspec.to_builtins(listed.info)
    place = {"tenant": listed.tenant, "model": engine.model, "engine": engine.link.index}
    return {**info, **place}


def _ids_of(tenant: str, outcome: Outcome) -> Iterator[str]:
    """Yield the ids of a tenant's sessions. Of a parked one only the digits in its id say whose it is."""
    for listed in outcome.sessions:
        if _is_of(tenant, listed.tenant):
            yield listed.info.session_id
    for session_id in outcome.parked:
        if _is_of(tenant, tenant_of(session_id)):
            yield session_id


def _is_of(asked: str, tenant: str | None) -> bool:
    """Return True if a tenant is the one asked for, by its name or its digits."""
    return tenant is not None and tenant in (asked, tenant_digits(asked))
