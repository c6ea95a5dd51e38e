"""`ts-stateful doctor --watch`: its output, and the time of its repairs."""

from __future__ import annotations

import io

import pytest

from tests.support.fake_management import FakeManagement, FakeModel, FakeTransport
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client.errors import DeadlineExceeded, ServerUnreachable
from ts_stateful.doctor.evidence import ExaminedModel
from ts_stateful.doctor.watch import Watch


class Ward:
    """A watch over one model; `said` has the printed lines."""

    def __init__(self, model: FakeModel, *, repair: bool = True) -> None:
        self.model = model
        self.management = FakeManagement(model)
        self._out = io.StringIO()
        examined = ExaminedModel("chat", self.management, FakeTransport(model), 5.0)
        self._watch = Watch(examined, Terminal(self._out), repair=repair)

    @property
    def said(self) -> list[str]:
        """Return the lines printed so far."""
        return self._out.getvalue().splitlines()

    def look(self, times: int = 1) -> list[str]:
        """Look so many times, and return the repairs so far."""
        for _ in range(times):
            self._watch.look_again()
        return self.model.deeds


def test_only_changes_are_printed() -> None:
    """The model is healthy, then not, then healthy again."""
    ward = Ward(FakeModel("sequence"), repair=False)
    assert ward.look(3) == []
    assert ward.said == ["ok: chat answers: sequence profile, version 0.0"]
    ward.model.kill()
    ward.look(3)
    assert len(ward.said) == 3
    assert ward.said[1].startswith("error: worker: its process exited")
    ward.model.register()
    ward.look(3)
    assert ward.said[3:] == ward.said[:1]


@pytest.mark.parametrize(
    ("profile", "deeds"), [("sequence", ["register"]), ("async", ["scale 0", "scale 1"])]
)
def test_a_dead_worker_is_replaced_after_two_looks(profile: str, deeds: list[str]) -> None:
    """This holds for each death."""
    ward = Ward(FakeModel(profile, model_api=True))
    for times in (1, 2, 3):
        ward.look()
        ward.model.kill()
        assert ward.look() == deeds * (times - 1)
        assert ward.look() == deeds * times
        ward.look()
        assert ward.said[-1] == f"ok: chat answers: {profile} profile, version 0.0"


def test_a_death_that_torchserve_missed_is_found() -> None:
    """A READY worker has no process; TorchServe never starts another one."""
    for profile in ("sequence", "continuous"):
        ward = Ward(FakeModel(profile, model_api=True))
        ward.look()
        ward.model.is_unnoticed = True
        assert ward.look() == []
        assert ward.said[1].startswith("error: worker: its process exited")
        assert ward.look() != []


def test_a_busy_model_gets_time() -> None:
    """A silent model may be busy; an answer in between starts the count again."""
    ward = Ward(FakeModel(model_api=True))
    for _ in range(2):
        ward.model.stuck = True
        assert ward.look(5) == []
        ward.model.stuck = False
        assert ward.look() == []
    ward.model.stuck = True
    assert ward.look(6) == ["register"]


def test_a_repair_without_effect_becomes_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair breaks requests in flight."""
    ward = Ward(FakeModel("async"))
    monkeypatch.setattr(ward.model, "scale", lambda count: ward.model.deeds.append(f"to {count}"))
    ward.model.kill()
    tries = []
    for look in range(1, 300):
        before = len(ward.look(0))
        if len(ward.look()) > before:
            tries.append(look)
    assert tries == [2, 6, 14, 30, 62, 126, 190, 254]


def test_a_failed_repair_is_completed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was unregistered but not registered again is registered later."""
    ward = Ward(FakeModel("sequence", model_api=True))
    register, failures = ward.management.register, [DeadlineExceeded("no answer within 10 s")]

    def fail(model: str, url: str, timeout_s: float) -> None:
        if failures:
            raise failures.pop()
        register(model, url, timeout_s)

    monkeypatch.setattr(ward.management, "register", fail)
    ward.look()
    ward.model.kill()
    assert ward.look(2) == []
    assert not ward.model.registered
    assert ward.look(4) == ["register"]
    ward.look()
    assert ward.said[-1].startswith("ok: chat answers")


def test_an_unregistered_model_is_left_alone() -> None:
    """Its operators removed it."""
    ward = Ward(FakeModel("sequence", model_api=True))
    ward.look()
    ward.model.registered = False
    assert ward.look(20) == []
    assert "error: model: TorchServe has no model chat" in ward.said[1]


def test_a_stopped_torchserve_is_waited_for() -> None:
    """It may be restarted."""
    ward = Ward(FakeModel("sequence", model_api=True))
    ward.look()
    ward.model.is_up = False
    assert ward.look(20) == []
    ward.model.is_up = True
    ward.look()
    assert [line.partition(":")[0] for line in ward.said] == ["ok", "error", "  cure", "ok"]


def test_looks_use_no_places() -> None:
    """In the sequence profile each id keeps a place; many looks at a hang use as many ids as one."""
    ward = Ward(FakeModel("sequence"), repair=False)
    ward.look()
    ward.model.scale(0)
    ward.model.scale(1)
    ward.look(50)
    assert "sessions that were open when a worker died" in ward.said[1]
    assert len(ward.model._met) <= 3


def test_an_error_of_the_inference_api_alone_is_not_repaired() -> None:
    """No server listens there."""
    ward = Ward(FakeModel("sequence", model_api=True))
    ward.model.refuses = ServerUnreachable("connection refused")
    assert ward.look(20) == []
