"""Broken connections, full servers and silence."""

from __future__ import annotations

import pickle

import pytest

from tests.support.fake_client import PROFILES, TORCHSERVE, FakeTime, connected
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from ts_stateful.client import (
    ClientError,
    DeadlineExceeded,
    ProtocolError,
    RequestTooLarge,
    Server,
    ServerRefused,
    ServerUnreachable,
    Session,
    StreamStalled,
    connect,
)
from ts_stateful.client.calls import Calls
from ts_stateful.client.open_session import OpenSession
from ts_stateful.protocol.errors import (
    EngineUnavailable,
    InternalError,
    OutOfMemory,
    QueueFull,
    TooManySessions,
)

PUSHED = [profile for profile in PROFILES if profile != "continuous"]
BREAK = Fault()
LOST = Fault(lost=True)


@pytest.fixture(params=PROFILES)
def fake(request: pytest.FixtureRequest) -> FakeSessions:
    """Return a server in each profile over gRPC, one over HTTP, and one of SageMaker."""
    return FakeSessions(profile=request.param)


@pytest.mark.parametrize("profile", PUSHED)
@pytest.mark.parametrize("events", [1, 4])
@pytest.mark.parametrize("ends", [False, True])
def test_a_broken_stream_is_resumed(profile: str, events: int, ends: bool) -> None:
    """A stream that breaks, or ends before its last event, goes on after the characters so far."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    fake.fail("prompt", Fault(events=events, ends=ends))
    with connected(fake, time) as server, server.open() as session:
        reply = session.prompt("Hello")
        assert "".join(reply) == reply_to("Hello")
        assert reply.finish_reason == "stop"
        assert session.ask("Next") == reply_to("Next")
    assert fake.of_kind("continue")[0]["after"] == 3 * events
    assert len(fake.of_kind("prompt")) == 2
    assert time.slept[0] == pytest.approx(0.1)


@pytest.mark.parametrize("profile", PUSHED)
def test_a_silent_stream_is_resumed(profile: str) -> None:
    """A stream that falls silent for the stall time is given up and goes on by `continue`."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    fake.fail("prompt", Fault(events=2, stalls=True))
    with connected(fake, time, stall_s=1.0) as server, server.open() as session:
        assert "".join(session.prompt("Hello")) == reply_to("Hello")
    assert fake.of_kind("continue")[0]["after"] == 6


@pytest.mark.parametrize("profile", PUSHED)
def test_a_stream_that_is_silent_from_the_start_is_attached_to(profile: str) -> None:
    """A prompt that gets no event at all is sent again as the same turn."""
    fake, time = FakeSessions(profile=profile), FakeTime()
    fake.fail("prompt", Fault(lost=True, stalls=True))
    with connected(fake, time, stall_s=0.5) as server, server.open() as session:
        reply = session.prompt("Hello")
        assert "".join(reply) == reply_to("Hello")
    assert {request["turn"] for request in fake.of_kind("prompt")} == {1}


@pytest.mark.parametrize("fault", [BREAK, LOST], ids=["request lost", "answer lost"])
def test_a_prompt_is_repeated_as_the_same_turn(
    server: Server, fake: FakeSessions, fault: Fault
) -> None:
    """A prompt whose connection broke is sent again; the turn happens once."""
    with server.open() as session:
        fake.fail("prompt", fault)
        assert session.ask("Hello") == reply_to("Hello")
        fake.fail("prompt", fault)
        assert session.prompt("Again").result() == reply_to("Again")
        assert len(fake.sessions[session.session_id]) == 2
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 1, 2, 2]


def _num_orphans(fake: FakeSessions, fault: Fault) -> int:
    """Count the lost sessions: SageMaker routes to no session whose opening it has not seen, so another one is opened."""
    return int(fault.lost and fake.profile == "sagemaker")


@pytest.mark.parametrize("fault", [BREAK, LOST], ids=["request lost", "answer lost"])
def test_open_and_close_are_repeated(server: Server, fake: FakeSessions, fault: Fault) -> None:
    """An `open` or `close` whose answer was lost is applied once and succeeds."""
    fake.fail("open", fault)
    fake.fail("close", fault)
    with server.open() as session:
        assert session.opened is not None
        assert session.opened.usage.prompt_tokens == 7
    assert list(fake.sessions)[-1:] == [session.session_id]
    assert len(fake.sessions) == 1 + _num_orphans(fake, fault)
    assert fake.closed == {session.session_id}


@pytest.mark.parametrize("fault", [BREAK, LOST], ids=["request lost", "answer lost"])
def test_fork_and_rewind_are_repeated(server: Server, fake: FakeSessions, fault: Fault) -> None:
    """A `fork` or `rewind` whose answer was lost is applied once and succeeds."""
    with server.open() as session:
        for text in ("one", "two"):
            session.ask(text)
        fake.fail("fork", fault)
        with session.fork() as fork:
            assert fork.opened is not None
            assert fork.opened.usage.prompt_tokens == 27
            reply = fork.prompt("three")
            assert (reply.result(), reply.turn) == (reply_to("three"), 3)
        fake.fail("rewind", fault)
        assert session.rewind(1).turn == 1
        reply = session.prompt("other")
        assert (reply.result(), reply.turn) == (reply_to("other"), 2)
    names = list(fake.sessions)
    assert (names[0], names[-1]) == (session.session_id, fork.session_id)
    assert len(names) == 2 + _num_orphans(fake, fault)


def test_back_off_doubles_and_ends(server: Server, fake: FakeSessions, time: FakeTime) -> None:
    """The delays between attempts double; after as many as the policy has, the error is raised."""
    with server.open() as session:
        fake.fail("info", *[BREAK] * 7)
        with pytest.raises((ServerUnreachable, ServerRefused)):  # SageMaker names the container
            session.info()
        assert time.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])


def test_the_servers_own_delay_is_honoured(
    server: Server, fake: FakeSessions, time: FakeTime
) -> None:
    """`retry_after_s` of a full queue is waited out before the prompt is repeated."""
    with server.open() as session:
        fake.fail("prompt", Fault(error=QueueFull("full", retry_after_s=7.0)))
        assert session.prompt("Hello").result() == reply_to("Hello")
        assert time.slept[0] == pytest.approx(7.1)


def test_retries_end_at_the_deadline(server: Server, fake: FakeSessions, time: FakeTime) -> None:
    """An error is raised at once where waiting for another attempt would miss the deadline."""
    fake.fail("open", Fault(error=TooManySessions("full", retry_after_s=60.0)))
    with pytest.raises(TooManySessions) as caught:
        server.open(timeout_s=30)
    assert caught.value.retry_after_s == 60.0
    assert time.slept == []


def test_a_passed_deadline_is_an_error(fake: FakeSessions, time: FakeTime) -> None:
    """A turn that takes longer than its deadline is given up between two pieces."""
    with connected(fake, time) as server, server.open() as session:
        reply = session.prompt("Hello", timeout_s=5)
        pieces = iter(reply)
        assert next(pieces)
        time.now += 6
        with pytest.raises(DeadlineExceeded, match="5 s"):
            next(pieces)
        assert reply.finish_reason is None
        assert 0 < len(reply.text) < len(reply_to("Hello"))


@pytest.mark.parametrize("lost", [False, True], ids=["request lost", "answer lost"])
def test_a_request_without_an_answer_is_sent_again(
    fake: FakeSessions, time: FakeTime, lost: bool
) -> None:
    """It is sent again after the stall time, as often as needed within the deadline, and applied once."""
    silence = Fault(lost=lost, stalls=True)
    for kind in ("hello", "open", "prompt", "info", "rewind", "close"):
        fake.fail(kind, silence)
    fake.fail("prompt", silence)
    # SageMaker's routes no request again that was slow alone: it would open another session.
    stall_s = 0.6 if fake.profile == "sagemaker" else 0.2
    with connected(fake, time, stall_s=stall_s, profile=_profile(fake)) as server:
        assert server.hello().model == "fake"
        with server.open() as session:
            assert session.ask("Hello") == reply_to("Hello")
            assert "".join(session.prompt("Again")) == reply_to("Again")
            assert session.info().turns == 2
            assert session.rewind(1).turn == 1
    assert fake.closed == {session.session_id}
    assert len(fake.sessions) == 1 + _num_orphans(fake, silence)
    assert time.slept == []


def _profile(fake: FakeSessions) -> str | None:
    """Return the profile if a client would ask for it first."""
    return fake.profile if fake.profile in ("continuous", "async", "sequence") else None


@pytest.mark.parametrize("kind", ["open", "fork"])
def test_an_id_of_the_callers_choice_is_asked_for_once(
    fake: FakeSessions, time: FakeTime, kind: str
) -> None:
    """A repeated request could meet the first one's session or another client's."""
    with connected(fake, time) as server, server.open() as session:
        before = len(fake.of_kind(kind))
        fake.fail(kind, Fault(stalls=True))
        # Only this call has a short stall time: on a busy machine others would be sent again and counted.
        calls = Calls(server._calls.transport, 60, time.policy(stall_s=0.05))
        hurried, known = Server(calls), Session(OpenSession(calls, session.session_id))
        begin = hurried.open if kind == "open" else known.fork
        with pytest.raises(DeadlineExceeded):
            begin(session_id="mine", timeout_s=0.2)
        assert len(fake.of_kind(kind)) <= before + 1


def test_a_silent_server_meets_the_deadline(fake: FakeSessions, time: FakeTime) -> None:
    """A call that is never answered ends at its deadline, and the error names the time that the caller gave it."""
    with connected(fake, time) as server, server.open() as session:
        fake.fail("info", Fault(stalls=True))
        with pytest.raises(DeadlineExceeded, match=r"within 0.05 s \(timeout_s\)"):
            session.info(timeout_s=0.05)
        fake.fail("prompt", Fault(stalls=True))
        with pytest.raises(DeadlineExceeded, match=r"within 0.05 s \(timeout_s\)"):
            session.prompt("Hello", timeout_s=0.05).result()


def test_an_error_that_is_final_is_raised_at_once(
    server: Server, fake: FakeSessions, time: FakeTime
) -> None:
    """A defect of the server is not retried, and the next prompt has the number of the failed one."""
    with server.open() as session:
        fake.fail("prompt", Fault(error=InternalError("id 123")))
        reply = session.prompt("Hello")
        with pytest.raises(InternalError, match="123"):
            reply.result()
        assert time.slept == []
        assert session.ask("Hello") == reply_to("Hello")
    assert [request["turn"] for request in fake.of_kind("prompt")] == [1, 1]


@pytest.mark.parametrize("profile", PUSHED)
def test_an_error_in_the_middle_of_a_stream_is_raised(profile: str) -> None:
    """A turn that fails after some text raises, and never mixes the text of two attempts."""
    fake = FakeSessions(profile=profile)
    fake.fail("prompt", Fault(events=2, error=OutOfMemory("none left")))
    fake.fail("continue", Fault(error=InternalError("gone")))
    with connected(fake, FakeTime()) as server, server.open() as session:
        reply = session.prompt("Hello")
        with pytest.raises(InternalError):
            reply.result()
        assert reply.text == reply_to("Hello")[:6]
    assert len(fake.of_kind("prompt")) == 1


def test_an_engine_that_restarts_is_waited_for(server: Server, fake: FakeSessions) -> None:
    """A retryable error of the server is tried again."""
    with server.open() as session:
        fake.fail("prompt", *[Fault(error=EngineUnavailable("restarting"))] * 3)
        assert session.ask("Hello") == reply_to("Hello")


@pytest.mark.parametrize("fake", TORCHSERVE, indirect=True)
def test_a_model_that_does_not_exist_is_named(fake: FakeSessions, time: FakeTime) -> None:
    """TorchServe's error becomes an exception with message, status and kind."""
    with connected(fake, time, model="nope") as server, pytest.raises(ServerRefused) as caught:
        server.open()
    assert caught.value.status == 404
    assert caught.value.kind == "ModelNotFoundException"
    assert "Model not found" in caught.value.message


@pytest.mark.parametrize("fake", TORCHSERVE, indirect=True)
def test_a_request_that_is_too_large_is_not_sent(fake: FakeSessions, time: FakeTime) -> None:
    """A body over the server's limit is refused here, with the numbers, as gRPC would not name the reason."""
    with connected(fake, time) as server, pytest.raises(RequestTooLarge, match="6,553,500"):
        server.open(system="x" * 6_553_500)
    assert fake.requests == []


@pytest.mark.parametrize("fake", TORCHSERVE, indirect=True)
def test_the_limit_can_be_raised(fake: FakeSessions, time: FakeTime) -> None:
    """A server with a larger `max_request_size` gets larger requests."""
    with connected(fake, time, max_body_bytes=20_000_000) as server:
        server.open(images=[bytes(5_000_000)]).close()
    assert len(fake.of_kind("open")[0]["images"][0]["base64"]) > 6_553_500


@pytest.mark.parametrize("fake", TORCHSERVE, indirect=True)
def test_the_token_is_sent(fake: FakeSessions, time: FakeTime) -> None:
    """TorchServe's token and headers of the caller go with every request."""
    with connected(fake, time, token="secret", headers={"X-Trace": "7"}) as server:
        server.open().close()
    for headers in fake.headers:
        assert headers["authorization"] == "Bearer secret"
        assert headers["x-trace"] == "7"


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_server_that_is_not_there_is_unreachable(scheme: str) -> None:
    """A refused connection is retried for a while and then raised."""
    time = FakeTime()
    url = f"{scheme}://127.0.0.1:1"
    policy = time.policy(max_retries=2)
    with connect(url, policy=policy) as server, pytest.raises(ServerUnreachable):
        server.hello()
    assert time.slept == pytest.approx([0.1, 0.2])


def test_interrupting_the_loop_cancels_the_turn(server: Server, fake: FakeSessions) -> None:
    """Ctrl-C between two pieces cancels the turn on the server."""
    with server.open() as session:
        reply = session.prompt("Hello")
        pieces = iter(reply)
        next(pieces)
        with pytest.raises(KeyboardInterrupt):
            pieces.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
        assert reply.finish_reason is not None
    assert "cancel" in fake.kinds()


def test_a_cancel_that_fails_raises_nothing(server: Server, fake: FakeSessions) -> None:
    """Giving a turn up is quiet even if the server does not take it."""
    with server.open() as session:
        reply = session.prompt("Hello")
        pieces = iter(reply)
        next(pieces)
        fake.fail("cancel", Fault(error=InternalError("no")))
        reply.close()
        assert reply.finish_reason is None


def test_a_count_that_cannot_be_asked_for_is_an_error(
    server: Server, fake: FakeSessions, time: FakeTime
) -> None:
    """After a failed turn the count is asked for, and if that fails nothing of the prompt is sent."""
    with server.open() as session:
        fake.fail("prompt", Fault(error=InternalError("one")))
        with pytest.raises(InternalError, match="one"):
            session.ask("Hello")
        fake.fail("info", Fault(error=InternalError("two")))
        with pytest.raises(InternalError, match="two"):
            session.ask("Hello")
        assert len(fake.of_kind("prompt")) == 1
        assert session.ask("Hello") == reply_to("Hello")


def test_the_error_trees_are_apart() -> None:
    """Errors of the connection are no errors of the protocol, and each has one base."""
    classes = [DeadlineExceeded, ProtocolError, RequestTooLarge, ServerUnreachable, StreamStalled]
    assert all(issubclass(cls, ClientError) for cls in classes)
    sent = pickle.loads(pickle.dumps(ServerRefused("no", status=404, kind="k")))
    assert (sent.message, sent.status, sent.kind) == ("no", 404, "k")
    assert ServerRefused("busy", status=503).retryable
    assert not ServerRefused("no", status=403).retryable
