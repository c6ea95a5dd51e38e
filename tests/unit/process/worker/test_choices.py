"""Requests for several replies become several requests, whose events become those of one."""

from __future__ import annotations

from ts_stateful.process.worker.choices import Choices
from ts_stateful.protocol.chat import Chat, RawPrompt
from ts_stateful.protocol.events import Event, EventKind, Submit
from ts_stateful.protocol.tenants import internal_id, tenant_of

ASKED = Submit(
    "r",
    Chat(session_id="s", temperature=1.0, seed=2**63 - 1),
    creates_session=True,
    ephemeral=True,
    affinity=("now", "before"),
    num_bytes=10,
    choices=3,
)


def test_each_choice_has_a_seed_and_a_session_of_its_own() -> None:
    """All name the first one, whose conversation the next request may continue; the bytes count once."""
    made = Choices().split(ASKED)
    assert [one.command.seed for one in made] == [2**63 - 1, 0, 1]  # type: ignore[union-attr]
    assert len({one.command.session_id for one in made}) == 3
    assert made[0].command.session_id == "s"
    assert [one.affinity for one in made] == [("now", "before"), ("now", "now"), ("now", "now")]
    assert [one.num_bytes for one in made] == [10, 0, 0]
    assert all(one.choices == 1 for one in made)


def test_each_text_has_its_choices() -> None:
    """In the order of the texts; the seeds are the same for each."""
    text = RawPrompt(session_id="s", prompt="a", others=((7, 8),), temperature=1.0, seed=5)
    made = Choices().split(Submit("r", text, creates_session=True, ephemeral=True, choices=4))
    commands = [one.command for one in made]
    assert [one.prompt for one in commands] == ["a", "a", "", ""]  # type: ignore[union-attr]
    assert [one.ids for one in commands] == [(), (), (7, 8), (7, 8)]  # type: ignore[union-attr]
    assert [one.seed for one in commands] == [5, 6, 5, 6]  # type: ignore[union-attr]
    assert all(one.others == () for one in commands)  # type: ignore[union-attr]


def test_sessions_are_those_of_the_principal() -> None:
    """What it has in shared caches is its own."""
    named = Submit("r", Chat(session_id="s"), choices=2, principal="ann")
    _, other = Choices().split(named)
    assert tenant_of(other.command.session_id or "") == tenant_of(internal_id("ann", "s"))


def test_the_answer_is_complete_with_the_last_choice() -> None:
    """In any order; the acceptance comes once."""
    choices = Choices()
    a, b, c = (one.request_id for one in choices.split(ASKED))
    accepted = [choices.merge(Event(name, EventKind.ACCEPTED))[0] for name in (b, a, c)]
    assert [event is not None for event in accepted] == [True, False, False]
    part, _ = choices.merge(Event(c, EventKind.PART, b"x"))
    assert part is not None
    assert (part.request_id, part.choice, part.kind) == ("r", 2, EventKind.PART)
    ends = [choices.merge(Event(name, EventKind.LAST, b"{}")) for name in (c, a, b)]
    assert [(event.kind, event.choice) for event, _ in ends if event] == [
        (EventKind.CHOICE, 2),
        (EventKind.CHOICE, 0),
        (EventKind.LAST, 1),
    ]
    other = Event("other", EventKind.LAST)
    assert choices.merge(other) == (other, [])


def test_the_first_error_is_the_end() -> None:
    """The other requests are dropped, and what still comes of them is for nobody."""
    choices = Choices()
    a, b, c = (one.request_id for one in choices.split(ASKED))
    choices.merge(Event(a, EventKind.LAST, b"{}"))
    error, unwanted = choices.merge(Event(b, EventKind.LAST, b"{}", status=429))
    assert error is not None
    assert (error.request_id, error.status, unwanted) == ("r", 429, [c])
    assert choices.merge(Event(c, EventKind.LAST))[0] == Event(c, EventKind.LAST)


def test_a_client_that_leaves_drops_all() -> None:
    """Of a group, or of a request that is none."""
    choices = Choices()
    ids = [one.request_id for one in choices.split(ASKED)]
    assert choices.drop("r") == ids
    assert choices.drop("r") == ["r"]
