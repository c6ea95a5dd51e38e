"""The administration over models whose engines a test plays."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from ts_stateful.asgi.admin import TokenGuard, make_admin_app
from ts_stateful.asgi.model import ModelFront
from ts_stateful.asgi.models import Models
from ts_stateful.config.schema import load_config
from ts_stateful.frontend.async_mailbox import AsyncMailbox
from ts_stateful.protocol.answers import Closed, SessionInfo, encode
from ts_stateful.protocol.errors import EngineUnavailable, StatefulError, StoreFailed
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.operations import (
    ListedSession,
    ListSessions,
    Operation,
    Outcome,
    SetLogLevel,
)
from ts_stateful.protocol.tenants import internal_id, tenant_digits


class PlayedEngine:
    """An engine's link: it answers from its `outcome`, or does not run if that is None."""

    takes_sessions = False

    def __init__(self, index: int, outcome: Outcome | None) -> None:
        self.index = index
        self.outcome = outcome
        self.operations: list[Operation] = []
        self.supervisor = SimpleNamespace(engine_pid=None)
        self.description = {"pid": None, "up": outcome is not None}

    def administer(self, operation: Operation) -> Future[Outcome]:
        """See `EngineLink`."""
        self.operations.append(operation)
        answer = Future[Outcome]()
        if self.outcome is None:
            answer.set_exception(EngineUnavailable("the engine does not run"))
        else:
            answer.set_result(self.outcome)
        return answer


class PlayedModel:
    """A model; `closed` are the sessions that were closed, `unwilling` those that cannot be."""

    version, is_ready = "1.0", True
    config = load_config({})

    def __init__(self, name: str, *outcomes: Outcome | None) -> None:
        self.name = name
        self.mailbox = AsyncMailbox()
        self.engines = [PlayedEngine(index, one) for index, one in enumerate(outcomes)]
        self.dispatcher = SimpleNamespace(links=self.engines, submit=self._submit)
        self.intake = SimpleNamespace(refuse_sessions=self._refuse)
        self.closed: list[str] = []
        self.unwilling: set[str] = set()
        self.refusal: StatefulError | None = None

    async def has_started(self, timeout_s: float) -> bool:
        """See `ModelFront`."""
        return True

    def _refuse(self, error: StatefulError | None) -> None:
        self.refusal = error

    def _submit(self, message: Submit) -> None:
        name = str(message.command.session_id)
        self.mailbox.post(Event(message.request_id, EventKind.ADOPTED, session_id=name))
        if name in self.unwilling:
            error = StoreFailed("the store does not answer")
            body, status = encode(error.to_body()), error.status
        else:
            self.closed.append(name)
            body, status = encode(Closed(name)), 200
        self.mailbox.post(Event(message.request_id, EventKind.LAST, body, status))


def listed(session_id: str, tenant: str | None = None) -> ListedSession:
    """A session of an engine."""
    info = SessionInfo(
        session_id=session_id,
        age_s=1.0,
        idle_s=0.5,
        expires_at="2026-01-31T12:00:00Z",
        turns=1,
        tokens=10,
        cached_tokens=9,
        images=0,
        residency="device",
        device_bytes=100,
        host_bytes=0,
        running=False,
        waiting=0,
    )
    return ListedSession(info, tenant)


def client_of(*models: PlayedModel) -> TestClient:
    """A client of their server."""
    return TestClient(make_admin_app(Models(cast("list[ModelFront]", list(models)))))


def ids(document: dict[str, Any]) -> list[str]:
    """The listed sessions."""
    return [one["session_id"] for one in document["sessions"]]


def test_sessions_of_all_engines_are_listed() -> None:
    """With their places; an engine that does not run is named, and hides no other."""
    chat = PlayedModel("chat", Outcome((listed("a"),)), None)
    other = PlayedModel("other", Outcome((listed("b", "acme"),)))
    document = client_of(chat, other).get("/sessions").json()
    assert ids(document) == ["a", "b"]
    assert [(one["model"], one["engine"]) for one in document["sessions"]] == [
        ("chat", 0),
        ("other", 0),
    ]
    assert document["missing"] == ["chat/1"]


@pytest.mark.parametrize("tenant", ["alice", tenant_digits("alice")])
def test_a_tenant_is_named_by_its_principal_or_its_digits(tenant: str) -> None:
    """Sessions that are parked are found by their ids; no other tenant's session ends."""
    own = [internal_id("alice", name) for name in ("one", "two", "parked")]
    foreign = [internal_id("bob", name) for name in ("one", "parked")]
    digits = tenant_digits("alice")
    chat = PlayedModel(
        "chat",
        Outcome((listed(own[0], digits), listed(foreign[0], tenant_digits("bob")), listed("c"))),
        Outcome((listed(own[1], digits),), parked=(own[2], foreign[1], "alice")),
    )
    client = client_of(chat)
    assert ids(client.get("/sessions", params={"tenant": tenant}).json()) == own[:2]
    assert client.post(f"/tenants/{tenant}/close").json() == {"closed": 3, "failed": {}}
    assert sorted(chat.closed) == sorted(own)


def test_an_id_that_no_session_can_have_is_refused() -> None:
    """Ids become names of files."""
    chat = PlayedModel("chat", Outcome())
    answer = client_of(chat).post("/sessions/a..b/close")
    assert (answer.status_code, chat.closed) == (400, [])


def test_a_list_that_failed_is_missing() -> None:
    """It is not an engine without sessions."""
    chat = PlayedModel("chat", Outcome(error="internal error"))
    assert client_of(chat).get("/sessions").json() == {"sessions": [], "missing": ["chat/0"]}


def test_a_server_that_stops_takes_no_sessions_again() -> None:
    """SIGTERM is for good."""
    chat = PlayedModel("chat", Outcome())
    models = Models(cast("list[ModelFront]", [chat]))
    asyncio.run(models.drain(0))
    answer = TestClient(make_admin_app(models)).post("/undrain")
    assert (answer.status_code, models.is_draining) == (503, True)
    assert chat.refusal is not None


def test_sessions_that_stay_open_are_named() -> None:
    """The others are closed."""
    chat = PlayedModel("chat", Outcome((listed("a", "acme"), listed("b", "acme"))))
    chat.unwilling.add("a")
    answer = client_of(chat).post("/tenants/acme/close").json()
    assert answer == {"closed": 1, "failed": {"a": "the store does not answer"}}


def test_a_tenant_is_not_ended_by_halves() -> None:
    """While an engine does not answer, none of its sessions is closed."""
    chat = PlayedModel("chat", Outcome((listed("a", "acme"),)), None)
    answer = client_of(chat).post("/tenants/acme/close")
    assert (answer.status_code, chat.closed) == (503, [])
    assert "chat/1" in answer.json()["error"]["message"]


def test_a_session_is_closed_at_its_model() -> None:
    """Or at the first one, or that which is named: only the store may have it."""
    chat = PlayedModel("chat", Outcome())
    other = PlayedModel("other", Outcome((listed("a"),)))
    with client_of(chat, other) as client:  # in one loop
        assert client.post("/sessions/a/close").json()["closed"] == 1
        assert (chat.closed, other.closed) == ([], ["a"])
        client.post("/sessions/b/close")
        client.post("/sessions/c/close", params={"model": "other"})
        assert (chat.closed, other.closed) == (["b"], ["a", "c"])
        assert client.post("/sessions/c/close", params={"model": "x"}).status_code == 404


@pytest.mark.parametrize("verb", ["evict", "expire"])
@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([Outcome(), Outcome((listed("a"),))], 200),
        ([Outcome(), Outcome(error="busy")], 400),
        ([Outcome(), Outcome()], 404),
        ([Outcome(), None], 503),
    ],
)
def test_the_engine_that_has_a_session_answers(
    verb: str, outcomes: list[Outcome | None], status: int
) -> None:
    """If none has it, one that does not run might."""
    assert (
        client_of(PlayedModel("chat", *outcomes)).post(f"/sessions/a/{verb}").status_code == status
    )


def test_draining_is_undone() -> None:
    """Every model refuses sessions meanwhile."""
    models = [PlayedModel("chat", Outcome()), PlayedModel("other", Outcome())]
    client = client_of(*models)
    assert client.post("/drain").json()["status"] == "draining"
    assert all(isinstance(model.refusal, EngineUnavailable) for model in models)
    assert client.post("/undrain").json()["status"] == "ready"
    assert [model.refusal for model in models] == [None, None]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/engines/0/restart", 400, "name the model: chat, other"),
        ("/engines/7/restart?model=chat", 400, "this server has chat/0, other/0"),
        ("/engines/0/restart?model=chat", 503, "restarted already"),
        ("/log-level?level=LOUD", 400, "'LOUD' is none of DEBUG"),
        ("/log-level", 400, "'' is none of DEBUG"),
    ],
)
def test_a_refusal_has_its_reason(path: str, status: int, reason: str) -> None:
    """And nothing is done."""
    models = [PlayedModel("chat", Outcome()), PlayedModel("other", Outcome())]
    answer = client_of(*models).post(path)
    assert answer.status_code == status
    assert reason in answer.json()["error"]["message"]
    assert not any(model.engines[0].operations for model in models)


def test_an_engine_that_exits_at_its_restart_is_being_restarted_already() -> None:
    """Its process may have ended before the server noticed."""
    model = PlayedModel("chat", Outcome())
    (engine,) = model.engines
    with subprocess.Popen(["true"]) as exited:
        pass
    engine.takes_sessions, engine.supervisor.engine_pid = True, exited.pid
    answer = client_of(model).post("/engines/0/restart")
    assert answer.status_code == 503
    assert "restarted already" in answer.json()["error"]["message"]


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, whose level is restored."""
    root = logging.getLogger()
    level = root.level
    yield root
    root.setLevel(level)


def test_the_level_of_the_log_changes_everywhere(root: logging.Logger) -> None:
    """In the front and in each engine."""
    chat = PlayedModel("chat", Outcome(), None)
    answer = client_of(chat).post("/log-level?level=ERROR").json()
    assert answer == {"level": "ERROR", "missing": ["chat/1"]}
    assert root.level == logging.ERROR
    assert chat.engines[0].operations == [SetLogLevel("ERROR")]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("secret", 401),
        ("Bearer s\xe9cret", 401),
        ("Bearer secret", 200),
        ("bearer  secret", 200),
    ],
)
def test_a_port_needs_the_token(header: str | None, status: int) -> None:
    """Before anything else is read."""
    chat = PlayedModel("chat", Outcome())
    app = make_admin_app(Models(cast("list[ModelFront]", [chat])))
    client = TestClient(TokenGuard(app, "secret"))
    headers = [] if header is None else [(b"Authorization", header.encode("latin-1"))]
    answer = client.get("/sessions", headers=headers)
    assert answer.status_code == status
    assert chat.engines[0].operations == ([ListSessions()] if status == 200 else [])
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
