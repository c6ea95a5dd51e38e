"""`ts-stateful doctor`: it finds the errors that TorchServe hides, explains them, and repairs some."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from tests.support.fake_management import FakeManagement, FakeModel, FakeTransport
from tests.support.fake_servers import http_server
from tests.support.fake_sessions import FakeSessions, Fault
from ts_stateful.cli import main
from ts_stateful.cli.doctor import attend
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client.errors import ClientError, DeadlineExceeded, ProtocolError, ServerRefused
from ts_stateful.client.management import Readiness
from ts_stateful.doctor.evidence import PROBE_SESSION, ExaminedModel
from ts_stateful.protocol.errors import (
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    SessionExists,
    SessionMoved,
    StoreFailed,
    TooManySessions,
    Unauthenticated,
)


class Practice:
    """A doctor with one model; `said` is the last output."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.management = FakeManagement(model)
        self.said = ""

    def healthy(self, name: str = "chat", *, repair: bool = False) -> bool:
        """Examine the model, and return True if it is healthy."""
        out = io.StringIO()
        examined = ExaminedModel(name, self.management, FakeTransport(self.model), 5.0)
        try:
            return attend(examined, Terminal(out), repair=repair)
        finally:
            self.said = out.getvalue().rstrip("\n")


@pytest.mark.parametrize("profile", ["continuous", "sequence", "async"])
def test_a_healthy_model_is_left_alone(profile: str) -> None:
    """The doctor does not repair it. It closes its session, and uses the same id the next time."""
    practice = Practice(FakeModel(profile))
    for _ in range(2):
        assert practice.healthy(repair=True)
        assert practice.said == f"ok: chat answers: {profile} profile, version 0.0"
    assert practice.model.deeds == []
    assert practice.model.sessions.sessions == {}
    asked = {str(request["session_id"]) for request in practice.model.sessions.requests}
    assert asked == {PROBE_SESSION}
    assert practice.model.num_refused == 0


def test_a_dead_worker_is_found_and_replaced() -> None:
    """In the sequence profile TorchServe starts no other one; registering revives all sessions."""
    practice = Practice(FakeModel("sequence", model_api=True))
    assert practice.healthy()
    practice.model.kill()
    assert not practice.healthy()
    assert practice.said.startswith("error: worker: its process exited, and TorchServe starts no")
    assert "  cure: run `ts-stateful doctor --repair`" in practice.said
    assert practice.model.deeds == []
    assert practice.healthy(repair=True)
    assert practice.model.deeds == ["register"]
    assert practice.said.endswith("ok: chat answers: sequence profile, version 0.0")


def test_without_the_model_api_new_sessions_alone_are_revived() -> None:
    """The model is still unhealthy; scaling again would break the sessions that work now."""
    practice = Practice(FakeModel("sequence"))
    practice.model.ask(b'{"type": "open"}', "mine")
    practice.model.kill()
    assert not practice.healthy(repair=True)
    assert practice.model.deeds == ["scale 0", "scale 1"]
    assert "enable_model_api is not set" in practice.said
    assert "  sessions that were open hang; restart TorchServe" in practice.said
    assert "error: sessions: sessions that were open when a worker died" in practice.said
    assert "cure: restart TorchServe" in practice.said
    practice.model.ask(b'{"type": "open"}', "new")
    assert not practice.healthy(repair=True)
    assert "not repaired: scaling the model would not help" in practice.said
    assert len(practice.model.deeds) == 2
    practice.model.ask(b'{"type": "info"}', "new")


def test_a_worker_that_serves_and_counts_as_dead() -> None:
    """In the async profile scaling is enough."""
    practice = Practice(FakeModel("async"))
    practice.model.kill()
    assert not practice.healthy()
    assert "it answers, but TorchServe considers it dead" in practice.said
    assert practice.healthy(repair=True)
    assert practice.model.deeds == ["scale 0", "scale 1"]


@pytest.mark.parametrize("model_api", [False, True])
def test_a_customized_description_is_named(model_api: bool) -> None:
    """A worker that is READY and gets no request: the doctor explains it, and scaling alone does not help."""
    practice = Practice(FakeModel(model_api=model_api))
    practice.model.stuck = True
    assert practice.healthy(repair=True) is model_api
    assert "customized=true" in practice.said
    assert ("register" in practice.model.deeds) is model_api


@pytest.mark.parametrize("ends", [DeadlineExceeded("no answer within 10 s"), KeyboardInterrupt()])
def test_a_model_that_was_scaled_to_none_gets_its_worker_back(
    monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    """This holds if TorchServe stops it slowly, and if the command is interrupted."""
    practice = Practice(FakeModel("async"))
    practice.model.kill()
    scale = practice.model.scale

    def slow(num_workers: int) -> None:
        scale(num_workers)
        if num_workers == 0:
            raise ends

    monkeypatch.setattr(practice.model, "scale", slow)
    with contextlib.suppress(KeyboardInterrupt):
        practice.healthy(repair=True)
    assert practice.model.deeds == ["scale 0", "scale 1"]


def test_a_model_that_was_unregistered_is_registered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds if TorchServe ends it slowly and the answer is lost."""
    practice = Practice(FakeModel("sequence", model_api=True))
    assert practice.healthy()
    practice.model.kill()
    unregister = practice.management.unregister

    def slow(model: str) -> None:
        unregister(model)
        raise DeadlineExceeded("no answer within 10 s")

    monkeypatch.setattr(practice.management, "unregister", slow)
    practice.healthy(repair=True)
    assert practice.model.deeds == ["register"]


def test_a_model_without_a_worker_gets_one() -> None:
    """It was scaled to none."""
    practice = Practice(FakeModel())
    practice.model.workers = []
    assert not practice.healthy()
    assert "the model has none: it was scaled to 0" in practice.said
    assert practice.healthy(repair=True)
    assert practice.model.workers == ["READY"]


def test_of_several_workers_one_is_left() -> None:
    """More than one do not share their sessions."""
    practice = Practice(FakeModel())
    practice.model.workers = ["READY", "READY"]
    assert not practice.healthy()
    assert "error: workers: the model has 2" in practice.said
    assert practice.healthy(repair=True)
    assert practice.model.workers == ["READY"]


def test_missing_parts_are_named() -> None:
    """TorchServe, the model or the management API may be missing; without the API the model is still examined."""
    practice = Practice(FakeModel())
    assert not practice.healthy("chta", repair=True)
    assert "TorchServe has no model chta; it has: chat" in practice.said
    practice.management.is_reachable = False
    assert practice.healthy()
    assert practice.said.startswith("warning: management API: ")
    practice.model.refuses = ModelNotFound("this server has smol")  # the front without TorchServe
    assert not practice.healthy()
    assert "error: model: this server has smol\n  cure: name one of them" in practice.said
    practice.model.is_up = False
    assert not practice.healthy(repair=True)
    assert practice.said.startswith("error: TorchServe: no server listens")
    assert practice.said.endswith("request to the management API can repair this")


@pytest.mark.parametrize(
    ("kind", "fault", "healthy", "said"),
    [
        ("hello", Fault(), False, "error: engine: the worker answers, its engine does not"),
        ("hello", Fault(error=EngineUnavailable("x")), False, "error: engine: the worker answers"),
        ("hello", Fault(error=InternalError("id 7")), False, "error: engine: id 7"),
        ("open", Fault(error=StoreFailed("full")), False, "error: store: sessions cannot be"),
        ("open", Fault(error=InternalError("id 8")), False, "error: sessions: no session can be"),
        ("open", Fault(), False, "error: sessions: no session can be opened: no answer"),
        ("open", Fault(error=TooManySessions("x")), True, "warning: sessions: all places"),
        ("open", Fault(error=InvalidRequest("x")), True, "ok: chat answers"),
        ("open", Fault(error=Unauthenticated("x")), True, "ok: chat answers"),
        ("continue", Fault(error=Unauthenticated("x")), True, "ok: chat answers"),
        ("open", Fault(error=SessionExists("x")), True, "ok: chat answers"),
        ("info", Fault(error=SessionMoved("x")), True, "ok: chat answers"),
        ("info", Fault(error=InternalError("x")), False, "error: sessions: no session can be"),
    ],
)
def test_engine_and_store_are_examined(kind: str, fault: Fault, healthy: bool, said: str) -> None:
    """Their failures differ from the worker's, and cause no repair."""
    practice = Practice(FakeModel())
    practice.model.sessions.fail(kind, fault)
    assert practice.healthy(repair=True) is healthy
    assert practice.said.startswith(said)
    assert practice.model.deeds == []


def test_a_store_that_accepts_no_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `policy: best_effort` it is a warning."""
    practice = Practice(FakeModel())
    info = practice.model.sessions._info
    monkeypatch.setattr(practice.model.sessions, "_info", lambda r: {**info(r), "saved": False})
    assert practice.healthy()
    assert practice.said.startswith("warning: store: it accepts no writes")


@pytest.mark.parametrize(
    ("status", "kind", "profile", "said"),
    [
        (400, "InvalidKeyException", "continuous", "error: token: "),
        (
            503,
            "ServiceUnavailableException",
            "sequence",
            "error: sessions: TorchServe has no free place",
        ),
        (503, "ServiceUnavailableException", "continuous", "error: queue: "),
        (500, "InternalServerException", "continuous", "error: worker: requests are refused"),
    ],
)
def test_refusals_of_torchserve_are_explained(
    status: int, kind: str, profile: str, said: str
) -> None:
    """Each has its cure."""
    practice = Practice(FakeModel(profile))
    practice.model.refuses = ServerRefused(kind, status=status, kind=kind)
    assert not practice.healthy()
    assert practice.said.startswith(said)


@pytest.mark.parametrize(
    "answer", [ServerRefused("no such page", status=404), ProtocolError("<html>")]
)
def test_a_model_is_left_alone_if_something_else_was_asked(answer: ClientError) -> None:
    """A wrong --url leads to another server, which is no evidence about the model."""
    practice = Practice(FakeModel())
    practice.model.refuses = answer
    assert not practice.healthy(repair=True)
    assert practice.said.startswith("error: inference API: another server than TorchServe")
    assert practice.model.deeds == []


def test_a_model_that_may_be_loading_elsewhere_is_left_alone() -> None:
    """The process of a worker is visible only on its machine."""
    practice = Practice(FakeModel("sequence"))
    practice.management.is_local = False
    practice.model.kill()
    assert not practice.healthy(repair=True)
    assert "cure: run the doctor on TorchServe's machine" in practice.said
    assert practice.model.deeds == []


def test_settings_that_hang_are_found_again() -> None:
    """The rules are those of `ts-stateful check`, for TorchServe's current settings."""
    model = FakeModel("sequence")
    hello = model.sessions._hello({})
    hello["limits"]["max_sessions"] = 65
    model.sessions._hello = lambda request: hello  # type: ignore[method-assign]
    practice = Practice(model)
    assert not practice.healthy()
    assert "error: maxNumSequence: 65 sessions with a batchSize of 64" in practice.said


@pytest.mark.parametrize(
    ("front", "name", "said"),
    [
        (
            Readiness("ready", {"chat": "ready"}),
            "chta",
            "error: model: the server has no model chta",
        ),
        (Readiness("draining", {"chat": "ready"}), "chat", "error: readiness: the server drains"),
        (Readiness("not ready", {"chat": "not ready"}), "chat", "error: engine: an engine of chat"),
        (
            Readiness("not ready", {"chat": "not ready"}, {"chat": {"step": "compiling"}}),
            "chat",
            "error: engine: an engine of chat is starting",
        ),
    ],
)
def test_a_server_without_torchserve_is_examined(front: Readiness, name: str, said: str) -> None:
    """It reports its own state, and has no repair. Without an error in it, the store is examined as well."""
    practice = Practice(FakeModel("asgi"))
    practice.management.front = Readiness("ready", {"chat": "ready"})
    assert practice.healthy()
    assert "warning: metrics: the address has none of chat" in practice.said
    assert "ok: chat answers: asgi profile" in practice.said
    assert (
        "\nstatus: ready\nmodels: chat ready\nmodel_version: 1.0\nlimits: max_sessions "
        in practice.said
    )
    practice.model.sessions.fail("open", Fault(error=StoreFailed("full")))
    assert not practice.healthy()
    assert practice.said.startswith("error: store: sessions cannot be written")
    practice.management.front = front
    assert not practice.healthy(name, repair=True)
    assert practice.said.startswith(said)
    assert practice.said.endswith("not repaired: no request to the management API can repair this")


def test_the_command_speaks_http(
    fake: FakeSessions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit status is that of the model; malformed URLs are 2. The variable of other commands counts."""
    closed = "http://127.0.0.1:1"
    with http_server(fake) as port:
        address = ["--url", f"http://127.0.0.1:{port}", "--management-url", closed]
        assert main(["doctor", *address, "--token", "secret", "--timeout", "60"]) == 0
        assert "ok: chat answers" in capsys.readouterr().out
        assert fake.headers[0]["authorization"] == "Bearer secret"
        assert fake.headers[0]["ts_request_sequence_id"] == PROBE_SESSION
        monkeypatch.setenv("TS_STATEFUL_URL", address[1])
        assert main(["doctor", *address[2:], "--timeout", "60"]) == 0
    monkeypatch.setenv("TS_STATEFUL_URL", "grpc://127.0.0.1:7070")
    assert main(["doctor"]) == 2
    assert "needs HTTP, not grpc://127.0.0.1:7070; give --url" in capsys.readouterr().err
    assert main(["doctor", "--url", closed, "--management-url", closed]) == 1
    capsys.readouterr()
    assert main(["doctor", "--url", closed, "--management-url", closed, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["healthy"], found["findings"][0]["severity"]) == (False, "error")
    assert main(["doctor", "--json", "--repair"]) == 2
    assert main(["doctor", "--url", "grpc://127.0.0.1:7070"]) == 2
    assert main(["doctor", "--management-url", "grpc://127.0.0.1:7071"]) == 2
    assert main(["doctor", "--metrics-url", "127.0.0.1:8082"]) == 2
