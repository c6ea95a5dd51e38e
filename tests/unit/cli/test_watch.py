"""`ts-stateful doctor --watch`: what it says, and when it does something."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.fake_management import FakeManagement, FakeModel, FakeTransport
from ts_stateful.cli.evidence import gather
from ts_stateful.cli.watch import Watch
from ts_stateful.client.errors import DeadlineExceeded, ServerUnreachable


class Ward:
    """A watch over one model; `said` is what it printed."""

    def __init__(self, model: FakeModel, *, repair: bool = True) -> None:
        self.model = model
        self.management = FakeManagement(model)
        self.said: list[str] = []
        look = partial(gather, "chat", self.management, FakeTransport(model), 5.0)
        self._watch = Watch(look, self.management, repair=repair, say=self.said.append)

    def look(self, times: int = 1) -> list[str]:
        """So many looks; what was done about what they saw."""
        for _ in range(times):
            self._watch.look_again()
        return self.model.deeds


def test_what_has_not_changed_is_said_once() -> None:
    """That it is well, that it is not, and that it is well again."""
    ward = Ward(FakeModel("sequence"), repair=False)
    assert ward.look(3) == []
    assert ward.said == ["ok: chat answers: sequence profile, version 0.0"]
    ward.model.kill()
    ward.look(3)
    assert len(ward.said) == 3
    assert ward.said[1].startswith("error: worker: its process is gone")
    ward.model.register()
    ward.look(3)
    assert ward.said[3:] == ward.said[:1]


@pytest.mark.parametrize(
    ("profile", "deeds"), [("sequence", ["register"]), ("async", ["scale 0", "scale 1"])]
)
def test_a_lost_worker_is_replaced_when_it_was_seen_twice(profile: str, deeds: list[str]) -> None:
    """Each time that it is lost."""
    ward = Ward(FakeModel(profile, model_api=True))
    for times in (1, 2, 3):
        ward.look()
        ward.model.kill()
        assert ward.look() == deeds * (times - 1)
        assert ward.look() == deeds * times
        ward.look()
        assert ward.said[-1] == f"ok: chat answers: {profile} profile, version 0.0"


def test_what_torchserve_has_not_noticed_is_seen() -> None:
    """A worker that is READY and has no process; where TorchServe will start another one by itself, that is waited for."""
    for profile, looks in (("sequence", 2), ("continuous", 6)):
        ward = Ward(FakeModel(profile, model_api=True))
        ward.look()
        ward.model.is_unnoticed = True
        assert ward.look(looks - 1) == []
        assert ward.said[1].startswith("error: worker: its process is gone")
        assert ward.look() != []


def test_who_may_be_busy_is_given_time() -> None:
    """A model that is ready and silent may have much to do; when it answers in between, that was it."""
    ward = Ward(FakeModel(model_api=True))
    for _ in range(2):
        ward.model.stuck = True
        assert ward.look(5) == []
        ward.model.stuck = False
        assert ward.look() == []
    ward.model.stuck = True
    assert ward.look(6) == ["register"]


def test_what_does_not_help_is_tried_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks off what others are doing."""
    ward = Ward(FakeModel("async"))
    monkeypatch.setattr(ward.model, "scale", lambda count: ward.model.deeds.append(f"to {count}"))
    ward.model.kill()
    tries = []
    for look in range(1, 300):
        before = len(ward.look(0))
        if len(ward.look()) > before:
            tries.append(look)
    assert tries == [2, 6, 14, 30, 62, 126, 190, 254]


def test_a_repair_that_broke_off_is_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was unregistered and could not be registered has not been forgotten."""
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


def test_a_model_that_others_unregister_is_left_alone() -> None:
    """They know why."""
    ward = Ward(FakeModel("sequence", model_api=True))
    ward.look()
    ward.model.registered = False
    assert ward.look(20) == []
    assert "error: model: TorchServe has no model chat" in ward.said[1]


def test_a_torchserve_that_is_gone_is_waited_for() -> None:
    """It may be restarted."""
    ward = Ward(FakeModel("sequence", model_api=True))
    ward.look()
    ward.model.is_up = False
    assert ward.look(20) == []
    ward.model.is_up = True
    ward.look()
    assert [line.partition(":")[0] for line in ward.said] == ["ok", "error", "  cure", "ok"]


def test_looking_takes_no_places() -> None:
    """In the sequence profile every id that is asked under holds one; those of a hang are as many as one look needs."""
    ward = Ward(FakeModel("sequence"), repair=False)
    ward.look()
    ward.model.scale(0)
    ward.model.scale(1)
    ward.look(50)
    assert "those that were open when a worker was lost" in ward.said[1]
    assert len(ward.model._met) <= 3


def test_an_error_of_the_inference_api_alone_is_not_repaired() -> None:
    """Nobody listens there, so nobody can be helped."""
    ward = Ward(FakeModel("sequence", model_api=True))
    ward.model.refuses = ServerUnreachable("connection refused")
    assert ward.look(20) == []
