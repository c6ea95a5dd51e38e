"""Sessions over every transport and profile, with one interface."""

from __future__ import annotations

import pytest

from tests.support.fake_client import PROFILES, FakeTime, connected
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from ts_stateful.client import Server
from ts_stateful.protocol.errors import (
    EngineUnavailable,
    InvalidRequest,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    TurnGap,
)


@pytest.fixture(params=PROFILES)
def fake(request: pytest.FixtureRequest) -> FakeSessions:
    """Return a server in each profile over gRPC, one over HTTP, and one of SageMaker."""
    return FakeSessions(profile=request.param)


def test_a_reply_comes_in_pieces(server: Server) -> None:
    """The pieces of a reply join to its text, and its figures are known at the end."""
    with server.open() as session:
        reply = session.prompt("Hello")
        pieces = list(reply)
        assert "".join(pieces) == reply.text == reply_to("Hello")
        assert len(pieces) > 3
        assert reply.finish_reason == "stop"
        assert reply.turn == 1
        assert reply.session_id == session.session_id
        assert reply.usage is not None
        assert reply.usage.completion_tokens == len(reply.text)
        assert reply.timing is not None
        assert reply.timing.first_token_ms == 1.5
        assert not reply.replayed


def test_a_reply_comes_whole(server: Server, fake: FakeSessions) -> None:
    """`ask` gives the text in one piece, however the profile delivers it."""
    with server.open() as session:
        assert session.ask("Hello", max_new_tokens=5) == reply_to("Hello")
        assert session.prompt("Again", stream=False).result() == reply_to("Again")
    first = fake.of_kind("prompt")[0]
    assert first["max_new_tokens"] == 5
    assert "stream" not in first


def test_turns_are_numbered(server: Server, fake: FakeSessions) -> None:
    """Prompts carry the number of their turn, and tokens of earlier turns are reused."""
    with server.open() as session:
        for number in (1, 2, 3):
            reply = session.prompt(f"prompt {number}")
            reply.result()
            assert reply.turn == number
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details.cached_tokens == 20
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 2, 3]
    assert "info" not in fake.kinds()


def test_options_are_sent(server: Server, fake: FakeSessions) -> None:
    """Options of the caller reach the server; missing ones are not sent."""
    with server.open(system="Be brief.", ttl_s=60, metadata={"user": 7}) as session:
        session.ask("Hi", temperature=0.5, top_p=0.9, top_k=3, seed=11, stop="END")
        session.prompt("Hi", stop=["A", "B"]).result()
    opened, first, second = fake.of_kind("open")[0], *fake.of_kind("prompt")
    assert (opened["system"], opened["ttl_s"], opened["metadata"]) == ("Be brief.", 60, {"user": 7})
    assert (first["temperature"], first["top_p"], first["top_k"], first["seed"]) == (
        0.5,
        0.9,
        3,
        11,
    )
    assert first["stop"] == "END"
    assert second["stop"] == ["A", "B"]
    assert "temperature" not in second


def test_leaving_the_block_closes_the_session(server: Server, fake: FakeSessions) -> None:
    """A session is closed once when its block ends, and further requests raise an error."""
    with server.open() as session:
        session.close()
        session.close()
    assert fake.kinds().count("close") == 1
    with pytest.raises((SessionClosed, SessionNotFound)):  # SageMaker does not tell them apart
        session.ask("Hello")


def test_leaving_the_loop_cancels_the_turn(server: Server, fake: FakeSessions) -> None:
    """A loop that is left early ends the turn; what was generated until then is known and stays."""
    with server.open() as session:
        reply = session.prompt("Hello")
        for _ in reply:
            break
        assert reply.finish_reason is not None
        assert fake.sessions[session.session_id][0].finish_reason is not None
        # In the sequence profile and on a fast stream, the turn may be done before the cancel comes.
        assert reply_to("Hello").startswith(reply.text)
        assert session.ask("Next") == reply_to("Next")
    assert "cancel" in fake.kinds()


def test_closing_a_reply_that_never_began_sends_nothing(server: Server, fake: FakeSessions) -> None:
    """A reply without a request for a piece costs nothing."""
    with server.open() as session:
        with session.prompt("Hello"):
            pass
        assert session.prompt("Hello").text == ""
        assert fake.kinds().count("prompt") == 0


def test_hello_and_info_are_typed(server: Server, fake: FakeSessions) -> None:
    """The server and a session describe themselves in typed answers."""
    assert server.hello().profile == fake.profile
    with server.open() as session:
        session.ask("Hello")
        info = session.info()
        assert (info.turns, info.residency, info.running) == (1, "device", False)
        assert session.opened is not None
        assert session.opened.usage.prompt_tokens == 7


def test_attach_goes_on_with_a_session(server: Server) -> None:
    """A session of an earlier process goes on with the turn that is next."""
    session = server.open(session_id="mine")
    session.ask("one")
    with server.attach("mine") as again:
        reply = again.prompt("two")
        assert reply.result() == reply_to("two")
        assert reply.turn == 2


def test_errors_are_typed(server: Server) -> None:
    """An error of the server is raised as the class of its code."""
    with pytest.raises(SessionNotFound):
        server.attach("missing")
    with server.open(session_id="mine") as session:
        with pytest.raises(SessionExists):
            server.open(session_id="mine")
        with pytest.raises(InvalidRequest) as caught:
            session.ask("Hello", temperature=-1)
        assert caught.value.field == "temperature"
        # The turn was not taken.
        assert session.ask("Hello") == reply_to("Hello")


def test_an_id_of_a_wrong_form_is_not_sent(server: Server, fake: FakeSessions) -> None:
    """Ids are checked before they travel."""
    with pytest.raises(InvalidRequest):
        server.attach("a;b")
    assert fake.requests == []


def test_continue_asks_for_any_part_of_a_turn(server: Server) -> None:
    """`continue_` returns the text of a turn after some of its characters."""
    with server.open() as session:
        text = session.ask("Hello")
        answer = session.continue_(1, after=10)
        assert answer.text == text[10:]
        assert (answer.next, answer.more) == (len(text), False)


def test_a_fork_goes_its_own_way(server: Server, fake: FakeSessions) -> None:
    """A fork begins with the turns so far; later turns of the two are independent."""
    with server.open() as session:
        session.ask("one")
        with session.fork() as fork:
            assert fork.ask("two") == reply_to("two")
            assert fork.continue_(1).text == reply_to("one")
            assert fork.info().turns == 2
            assert session.info().turns == 1
            assert session.prompt("other").result() == reply_to("other")
        assert fake.closed == {fork.session_id}
        assert session.ask("three") == reply_to("three")
    assert fork.opened is not None
    assert fork.opened.usage.prompt_tokens == 17
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 2, 2, 3]


def test_a_fork_may_begin_earlier_and_be_named(server: Server, fake: FakeSessions) -> None:
    """The fork begins after `at_turn`; id, lifetime and metadata are as in `open`."""
    with server.open() as session:
        for text in ("one", "two"):
            session.ask(text)
        with session.fork(at_turn=1, session_id="mine", ttl_s=60, metadata={"user": 7}) as fork:
            assert fork.session_id == "mine"
            assert fork.prompt("other").result() == reply_to("other")
            assert fork.info().turns == 2
            with pytest.raises(SessionExists):
                session.fork(session_id="mine")
        with pytest.raises(TurnGap):
            session.fork(at_turn=3)
        with pytest.raises(InvalidRequest):
            session.fork(session_id="a;b")
    sent = fake.of_kind("fork")[0]
    assert (sent["at_turn"], sent["ttl_s"], sent["metadata"]) == (1, 60, {"user": 7})
    assert sent["session_id"] == session.session_id


def test_a_rewound_session_goes_on_from_there(server: Server, fake: FakeSessions) -> None:
    """The next turn has the number after the one of the rewind; a rewind may be repeated."""
    with server.open() as session:
        for text in ("one", "two", "three"):
            session.ask(text)
        for _ in range(2):
            assert (session.rewind(1).turn, session.info().turns) == (1, 1)
        reply = session.prompt("other")
        assert reply.result() == reply_to("other")
        assert reply.turn == 2
        with pytest.raises(TurnGap):
            session.rewind(3)
        assert session.ask("next") == reply_to("next")
        assert session.rewind(0).tokens == 7
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 2, 3, 2, 3]


def test_cancel_ends_the_turn_and_the_loop_ends_by_itself(fake: FakeSessions) -> None:
    """After `cancel` the loop comes to the end of what was generated."""
    if fake.profile == "sequence":
        pytest.skip("a turn of the sequence profile cannot be interrupted")
    with connected(fake, FakeTime()) as server, server.open() as session:
        reply = session.prompt("Hello")
        for number, _ in enumerate(reply):
            if number == 0:
                reply.cancel()
        assert reply.finish_reason is not None
        assert reply.text == fake.sessions[session.session_id][0].text


def test_cancel_has_the_time_that_every_call_has() -> None:
    """By default it has the connection's timeout: an engine that restarts for half a minute is waited for."""
    fake, time = FakeSessions(profile="continuous"), FakeTime()
    with connected(fake, time) as server, server.open() as session:
        reply = session.prompt("Hello")
        pieces = iter(reply)  # kept: where it is dropped, the turn is cancelled
        next(pieces)
        fake.fail("cancel", *[Fault(error=EngineUnavailable("x", retry_after_s=30))] * 2)
        with pytest.raises(EngineUnavailable):
            reply.cancel(timeout_s=10)
        reply.cancel()
        reply.result()
        assert reply.finish_reason == "cancelled"


@pytest.mark.parametrize("fake", ["sagemaker"], indirect=True)
@pytest.mark.parametrize("kind", ["open", "fork"])
def test_a_second_lost_answer_is_made_up_too(server: Server, fake: FakeSessions, kind: str) -> None:
    """After a lost `open` or `fork`, which SageMaker does not route to, the next one may be lost as well."""
    session = server.open()
    fake.fail(kind, Fault(lost=True), Fault(error=SessionExists("open")), Fault(lost=True))
    other = server.open() if kind == "open" else session.fork()
    assert other.ask("Hello") == reply_to("Hello")


@pytest.mark.parametrize("stream", [True, False])
def test_a_lost_session_is_opened_again_if_asked(
    server: Server, fake: FakeSessions, stream: bool
) -> None:
    """It has another id and the same system prompt; the prompt is its first turn."""
    session = server.open(system="Be brief.", reopen=True)
    session.ask("one")
    first = session.session_id
    del fake.sessions[first]
    reply = session.prompt("two", stream=stream)
    assert "".join(reply) == reply_to("two")
    assert (reply.turn, reply.session_id, session.num_reopened) == (1, session.session_id, 1)
    assert first != session.session_id
    assert session.ask("three") == reply_to("three")
    assert [request["system"] for request in fake.of_kind("open")] == ["Be brief."] * 2
    assert [request["turn"] for request in fake.of_kind("prompt")][-2:] == [1, 2]


def test_a_session_whose_reopening_was_not_answered_is_opened_once(
    server: Server, fake: FakeSessions
) -> None:
    """The lost answer to the second `open` is made up as that of the first one is."""
    session = server.open(reopen=True)
    fake.sessions.clear()
    fake.fail("open", Fault(lost=True))
    assert session.ask("two") == reply_to("two")
    # SageMaker routes to no session whose opening it has not seen.
    assert len(fake.sessions) == 1 + (fake.profile == "sagemaker")


def test_a_session_is_opened_again_once_in_a_turn(server: Server, fake: FakeSessions) -> None:
    """A second loss raises its error, and so does the first without `reopen`."""
    session = server.open(reopen=True)
    gone = Fault(error=SessionNotFound("gone"))
    fake.fail("prompt", gone, gone)
    with pytest.raises(SessionNotFound):
        session.ask("one")
    fake.fail("info", gone)  # for the number of the next turn, which is unknown after a failure
    assert session.ask("two") == reply_to("two")
    assert session.num_reopened == 2
    fake.fail("prompt", gone)
    with pytest.raises(SessionNotFound), server.open() as other:
        other.ask("three")
    assert other.num_reopened == 0


def test_replies_to_a_lost_session_share_the_new_one(server: Server, fake: FakeSessions) -> None:
    """Replies that were made before the loss share it, too."""
    session = server.open(reopen=True)
    first, second = session.prompt("Hello"), session.prompt("Next")
    fake.sessions.clear()
    assert first.result() == reply_to("Hello")
    assert second.result() == reply_to("Next")
    assert (second.turn, second.session_id) == (2, session.session_id)
    assert session.num_reopened == 1
    assert session.ask("Again") == reply_to("Again")
