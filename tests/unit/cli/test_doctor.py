"""`ts-stateful doctor`: it finds what TorchServe hides, says it in words, and puts right what can be."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from tests.support.fake_management import FakeManagement, FakeModel, FakeTransport
from tests.support.fake_servers import http_server
from tests.support.fake_sessions import FakeSessions, Fault
from ts_stateful.cli import main
from ts_stateful.cli.doctor import attend
from ts_stateful.cli.evidence import PROBE_SESSION, gather
from ts_stateful.client.errors import ClientError, DeadlineExceeded, ProtocolError, ServerRefused
from ts_stateful.protocol.errors import (
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    SessionExists,
    SessionMoved,
    StoreFailed,
    TooManySessions,
)


class Practice:
    """A doctor with one patient; `said` is what was printed last."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.management = FakeManagement(model)
        self.said = ""

    def healthy(self, name: str = "chat", *, repair: bool = False) -> bool:
        """What the exit status says."""
        lines: list[str] = []
        look = partial(gather, name, self.management, FakeTransport(self.model), 5.0)
        try:
            return attend(look, self.management, repair=repair, say=lines.append)
        finally:
            self.said = "\n".join(lines)


@pytest.mark.parametrize("profile", ["continuous", "sequence", "async"])
def test_a_healthy_model_is_left_alone(profile: str) -> None:
    """Nothing is repaired that works; the session that was opened is closed, and asked under again the next time."""
    practice = Practice(FakeModel(profile))
    for _ in range(2):
        assert practice.healthy(repair=True)
        assert practice.said == f"ok: chat answers: {profile} profile, version 0.0"
    assert practice.model.deeds == []
    assert practice.model.sessions.sessions == {}
    asked = {str(request["session_id"]) for request in practice.model.sessions.requests}
    assert asked == {PROBE_SESSION}


def test_a_worker_that_is_lost_is_found_and_replaced() -> None:
    """In the sequence profile TorchServe starts no other one; registering brings everybody back."""
    practice = Practice(FakeModel("sequence", model_api=True))
    assert practice.healthy()
    practice.model.kill()
    assert not practice.healthy()
    assert practice.said.startswith("error: worker: its process is gone, and TorchServe starts no")
    assert "  cure: `ts-stateful doctor --repair`" in practice.said
    assert practice.model.deeds == []
    assert practice.healthy(repair=True)
    assert practice.model.deeds == ["register"]
    assert practice.said.endswith("ok: chat answers: sequence profile, version 0.0")


def test_without_the_model_api_new_sessions_alone_are_revived() -> None:
    """That is said, with the cure, and is no health; scaling once more would lose those that are served by now."""
    practice = Practice(FakeModel("sequence"))
    practice.model.ask(b'{"type": "open"}', "mine")
    practice.model.kill()
    assert not practice.healthy(repair=True)
    assert practice.model.deeds == ["scale 0", "scale 1"]
    assert "enable_model_api is not set" in practice.said
    assert "error: sessions: those that were open when a worker was lost" in practice.said
    assert "cure: restart TorchServe" in practice.said
    practice.model.ask(b'{"type": "open"}', "new")
    assert not practice.healthy(repair=True)
    assert "not repaired: to scale the model would not help" in practice.said
    assert len(practice.model.deeds) == 2
    practice.model.ask(b'{"type": "info"}', "new")


def test_a_worker_that_serves_and_counts_as_lost() -> None:
    """In the async profile scaling is enough."""
    practice = Practice(FakeModel("async"))
    practice.model.kill()
    assert not practice.healthy()
    assert "it answers, but TorchServe takes it for lost" in practice.said
    assert practice.healthy(repair=True)
    assert practice.model.deeds == ["scale 0", "scale 1"]


@pytest.mark.parametrize("model_api", [False, True])
def test_a_customized_description_is_named(model_api: bool) -> None:
    """A worker that is READY and gets nothing: the reason is told, and scaling alone does not heal it."""
    practice = Practice(FakeModel(model_api=model_api))
    practice.model.stuck = True
    assert practice.healthy(repair=True) is model_api
    assert "customized=true" in practice.said
    assert ("register" in practice.model.deeds) is model_api


@pytest.mark.parametrize("ends", [DeadlineExceeded("no answer within 10 s"), KeyboardInterrupt()])
def test_a_model_that_was_scaled_to_none_gets_its_worker_back(
    monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    """Also where TorchServe takes long to stop it, or somebody waits no longer."""
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
    """Also where TorchServe takes long to end it, so that nobody heard of it."""
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
    """As somebody had scaled it to none."""
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
    assert "error: workers: 2 of them" in practice.said
    assert practice.healthy(repair=True)
    assert practice.model.workers == ["READY"]


def test_who_is_asked_may_not_be_there() -> None:
    """Neither TorchServe, nor the model, nor the management API; with the API alone missing the model is asked all the same."""
    practice = Practice(FakeModel())
    assert not practice.healthy("chta", repair=True)
    assert "TorchServe has no model chta; it has: chat" in practice.said
    practice.management.is_reachable = False
    assert practice.healthy()
    assert practice.said.startswith("warning: management API: ")
    practice.model.is_up = False
    assert not practice.healthy(repair=True)
    assert practice.said.startswith("error: TorchServe: nobody listens")
    assert practice.said.endswith("management API could put right")


@pytest.mark.parametrize(
    ("kind", "fault", "healthy", "said"),
    [
        ("hello", Fault(), False, "error: engine: the worker answers, its engine does not"),
        ("hello", Fault(error=EngineUnavailable("x")), False, "error: engine: the worker answers"),
        ("hello", Fault(error=InternalError("id 7")), False, "error: engine: id 7"),
        ("open", Fault(error=StoreFailed("full")), False, "error: store: no session can be"),
        ("open", Fault(error=InternalError("id 8")), False, "error: sessions: none can be opened"),
        ("open", Fault(), False, "error: sessions: none can be opened: no answer"),
        ("open", Fault(error=TooManySessions("x")), True, "warning: sessions: all places"),
        ("open", Fault(error=InvalidRequest("x")), True, "ok: chat answers"),
        ("open", Fault(error=SessionExists("x")), True, "ok: chat answers"),
        ("info", Fault(error=SessionMoved("x")), True, "ok: chat answers"),
        ("info", Fault(error=InternalError("x")), False, "error: sessions: none can be opened"),
    ],
)
def test_what_is_behind_the_worker(kind: str, fault: Fault, healthy: bool, said: str) -> None:
    """Engine and store are told from the worker, and TorchServe is not troubled about them."""
    practice = Practice(FakeModel())
    practice.model.sessions.fail(kind, fault)
    assert practice.healthy(repair=True) is healthy
    assert practice.said.startswith(said)
    assert practice.model.deeds == []


def test_what_the_store_has_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `policy: best_effort` it is a warning."""
    practice = Practice(FakeModel())
    told = practice.model.sessions._info
    monkeypatch.setattr(practice.model.sessions, "_info", lambda r: {**told(r), "saved": False})
    assert practice.healthy()
    assert practice.said.startswith("warning: store: it takes no writes")


@pytest.mark.parametrize(
    ("status", "kind", "profile", "said"),
    [
        (400, "InvalidKeyException", "continuous", "error: token: "),
        (
            503,
            "ServiceUnavailableException",
            "sequence",
            "error: sessions: TorchServe has no place",
        ),
        (503, "ServiceUnavailableException", "continuous", "error: queue: "),
        (500, "InternalServerException", "continuous", "error: worker: requests are refused"),
    ],
)
def test_what_torchserve_refuses(status: int, kind: str, profile: str, said: str) -> None:
    """In words that say what to do."""
    practice = Practice(FakeModel(profile))
    practice.model.refuses = ServerRefused(kind, status=status, kind=kind)
    assert not practice.healthy()
    assert practice.said.startswith(said)


@pytest.mark.parametrize(
    "answer", [ServerRefused("no such page", status=404), ProtocolError("<html>")]
)
def test_a_model_is_left_alone_if_something_else_was_asked(answer: ClientError) -> None:
    """At a wrong --url something answers as TorchServe does not, which says nothing of the model."""
    practice = Practice(FakeModel())
    practice.model.refuses = answer
    assert not practice.healthy(repair=True)
    assert practice.said.startswith("error: inference API: what answers there is not TorchServe")
    assert practice.model.deeds == []


def test_a_model_that_may_be_loading_elsewhere_is_left_alone() -> None:
    """Whether a worker that is not ready has a process is seen on its machine alone."""
    practice = Practice(FakeModel("sequence"))
    practice.management.is_local = False
    practice.model.kill()
    assert not practice.healthy(repair=True)
    assert "cure: run this on the machine of TorchServe" in practice.said
    assert practice.model.deeds == []


def test_settings_that_hang_are_found_again() -> None:
    """The rules are those of `ts-stateful check`, applied to what TorchServe has made of the settings."""
    model = FakeModel("sequence")
    hello = model.sessions._hello({})
    hello["limits"]["max_sessions"] = 65
    model.sessions._hello = lambda request: hello  # type: ignore[method-assign]
    practice = Practice(model)
    assert not practice.healthy()
    assert "error: maxNumSequence: 65 sessions with a batchSize of 64" in practice.said


def test_the_command_speaks_http(fake: FakeSessions, capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit status is that of the model; what it cannot mean is 2."""
    nobody = "http://127.0.0.1:1"
    with http_server(fake) as port:
        address = ["--url", f"http://127.0.0.1:{port}", "--management-url", nobody]
        assert main(["doctor", *address, "--token", "secret", "--timeout", "60"]) == 0
        assert "ok: chat answers" in capsys.readouterr().out
        assert fake.headers[0]["authorization"] == "Bearer secret"
        assert fake.headers[0]["ts_request_sequence_id"] == PROBE_SESSION
    assert main(["doctor", "--url", nobody, "--management-url", nobody]) == 1
    assert main(["doctor", "--url", "grpc://127.0.0.1:7070"]) == 2
    assert main(["doctor", "--management-url", "grpc://127.0.0.1:7071"]) == 2
