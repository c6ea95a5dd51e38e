"""Principals on one server: each sees what it would see on a server of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fronted import Answered, FrontedEngine
from tests.support.pictures import noise
from tests.support.store_engines import FailingStore
from tests.support.tiny import llava
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.tenants import internal_id, tenant_of

_SYSTEM = "You are a careful assistant that answers every question in one word."
_CHAT = "v1/chat/completions"
_NAMES = st.sampled_from(["a", "b", "A"])
_IMAGES = st.sampled_from([[], [{"url": "picture-0"}]])
_BODIES = st.one_of(
    st.builds(
        lambda name, images, system: {
            "type": "open",
            "session_id": name,
            "images": images,
            "system": system,
        },
        _NAMES,
        _IMAGES,
        st.sampled_from([_SYSTEM, None]),
    ),
    st.builds(
        lambda name, text, turn, stream: {
            "prompt": text,
            "session_id": name,
            "max_new_tokens": 2,
            "stream": stream,
            **({} if turn is None else {"turn": turn}),
        },
        _NAMES,
        st.sampled_from(["hi", "ho"]),
        st.sampled_from([None, 1, 2]),
        st.booleans(),
    ),
    st.builds(
        lambda name, new, turn: {
            "type": "fork",
            "session_id": name,
            "new_session_id": new,
            "at_turn": turn,
        },
        _NAMES,
        _NAMES,
        st.sampled_from([None, 0, 1]),
    ),
    st.builds(
        lambda kind, name: {"type": kind, "session_id": name},
        st.sampled_from(["close", "info", "cancel", "hello"]),
        _NAMES,
    ),
    st.builds(lambda name: {"type": "rewind", "session_id": name, "to_turn": 0}, _NAMES),
    st.builds(lambda name: {"type": "continue", "session_id": name, "turn": 1}, _NAMES),
    st.builds(
        lambda name: {"type": "upload", "session_id": name, "sha256": "0" * 64, "base64": "aGk="},
        _NAMES,
    ),
    st.just({"type": "open", "metadata": {"tenant": "alice"}, "session_id": "a"}),
    st.just({"type": "nonsense"}),
    st.just(61.0),  # not a request: all sessions are idle for so many seconds
)
_PRINCIPALS = st.sampled_from(["alice", "bob"])


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that sees."""
    return llava()


def server(model: Model, store: FailingStore | None = None) -> FrontedEngine:
    """A server that trusts a proxy's header."""
    made = FrontedEngine(model, store)
    made.harness.media["picture-0"] = noise(1, 16, 16)
    return made


def seen(answered: Answered) -> Any:
    """What does not depend on how fast the engine was."""
    documents = [
        {name: value for name, value in document.items() if name not in ("timing", "saved")}
        for document in answered.documents
    ]
    return answered.status, answered.headers, documents


@settings(max_examples=40, deadline=None)
@given(requests=st.lists(st.tuples(_PRINCIPALS, _BODIES), min_size=4, max_size=24))
def test_a_principal_sees_what_it_would_see_alone(
    model: Model, requests: list[tuple[str, Any]]
) -> None:
    """Documents, statuses, headers and counts of cached tokens, whatever another one does under the same ids."""
    shared = server(model, FailingStore())
    alone = {name: server(model, FailingStore()) for name in ("alice", "bob")}
    for principal, body in requests:
        if isinstance(body, float):
            for each in (shared, *alone.values()):
                each.harness.clock.now += body
                each.harness.engine.tick()
                each.harness.run()
            continue
        expected = alone[principal].ask(principal, body)
        assert seen(shared.ask(principal, body)) == seen(expected), (principal, body)
    for message in shared.submitted:
        for session_id in message.session_ids:
            assert tenant_of(session_id) == tenant_of(internal_id(str(message.principal), "x"))


def conversation(server: FrontedEngine, principal: str, session_id: str = "ID-0") -> None:
    """Open a session and take a turn in it."""
    opened = server.ask(principal, {"type": "open", "session_id": session_id, "system": _SYSTEM})
    assert opened.document["session_id"] == session_id
    turn = server.ask(principal, {"prompt": "hi", "session_id": session_id, "max_new_tokens": 2})
    assert (turn.status, turn.document["session_id"]) == (200, session_id)


@pytest.mark.parametrize("ends", ["open", "closed", "expired"])
@pytest.mark.parametrize("kind", ["info", "prompt", "fork", "close", "upload", "chat"])
@pytest.mark.parametrize("stored", [True, False])
def test_anothers_id_is_as_one_that_never_existed(
    model: Model, ends: str, kind: str, stored: bool
) -> None:
    """The same answer by the same number of steps: of messages to the engine, its events and calls of the store."""
    store = CountingStore() if stored else None
    shared = server(model, store)
    conversation(shared, "alice")
    if ends == "closed":
        assert shared.ask("alice", {"type": "close", "session_id": "ID-0"}).status == 200
    if ends == "expired":
        shared.harness.clock.now += 61
        shared.harness.engine.tick()
        shared.harness.run()
    if ends != "open":
        gone = shared.ask("alice", {"type": "info", "session_id": "ID-0"})
        assert gone.status == 410

    def probe(session_id: str) -> tuple[Any, tuple[int, ...]]:
        before = _counts(shared, store)
        body, path = _BODY[kind](session_id), _CHAT if kind == "chat" else ""
        headers = {"ts_request_sequence_id": session_id} if kind == "chat" else {}
        answered = shared.ask("bob", body, path, **headers)
        text = json.dumps(seen(answered)).replace(session_id, "*")
        return text, tuple(b - a for a, b in zip(before, _counts(shared, store), strict=True))

    assert probe("ID-0") == probe("ID-1")
    assert "session_not_found" in probe("ID-0")[0]


class CountingStore(FailingStore):
    """A store that counts its calls."""

    num_calls = 0

    def _check(self) -> None:
        self.num_calls += 1
        super()._check()


def _counts(server: FrontedEngine, store: CountingStore | None) -> tuple[int, ...]:
    return (
        len(server.submitted),
        server.harness.num_events,
        0 if store is None else store.num_calls,
    )


_BODY: dict[str, Any] = {
    "info": lambda name: {"type": "info", "session_id": name},
    "prompt": lambda name: {"prompt": "x", "session_id": name},
    "fork": lambda name: {"type": "fork", "session_id": name, "new_session_id": "mine"},
    "close": lambda name: {"type": "close", "session_id": name},
    "upload": lambda name: {
        "type": "upload",
        "session_id": name,
        "sha256": "0" * 64,
        "base64": "aGk=",
    },
    "chat": lambda name: {"model": "chat", "messages": [{"role": "user", "content": "x"}]},
}


def test_a_session_goes_on_at_another_server_for_its_principal_only(model: Model) -> None:
    """The store has it under the principal, so adoption finds no other."""
    store = FailingStore()
    conversation(server(model, store), "alice")
    second = server(model, store)
    info = {"type": "info", "session_id": "ID-0"}
    assert second.ask("bob", info).code == "session_not_found"
    assert second.ask("alice", info).document["turns"] == 1
    conversation(second, "bob")
    fork = {"type": "fork", "session_id": "ID-0", "new_session_id": "f"}
    forked = second.ask("alice", fork).document
    assert (forked["session_id"], forked["forked_from"], forked["turn"]) == ("f", "ID-0", 1)


def test_no_key_of_the_store_is_of_two_principals(model: Model) -> None:
    """Not even that of an image that both show."""
    store = FailingStore()
    shared = server(model, store)
    for principal in ("alice", "bob"):
        body = {"type": "open", "session_id": "ID-0", "images": [{"url": "picture-0"}]}
        assert shared.ask(principal, body).status == 200
    tenants = {name: tenant_of(internal_id(name, "s")) for name in ("alice", "bob")}
    keys = store.list("sessions")
    assert len(keys) == 4
    assert not store.list("blobs")
    assert all(sum(str(tenant) in key for tenant in tenants.values()) == 1 for key in keys)


def test_computed_things_are_shared_within_a_principal_only(model: Model) -> None:
    """The count of cached tokens reveals no prompt of another one."""
    shared = server(model)

    def cached(principal: str, session_id: str) -> int:
        body = {"type": "open", "session_id": session_id, "system": _SYSTEM}
        usage = shared.ask(principal, body).document["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached("alice", "1") == 0
    assert cached("bob", "2") == 0
    assert cached("alice", "3") > 0


def test_a_request_without_a_principal_is_refused_unread(model: Model) -> None:
    """Only `hello` is answered, for health checks."""
    shared = server(model)
    bodies: list[Any] = [
        {"prompt": "x"},
        {"type": "open"},
        {"type": "info", "session_id": "ID-0"},
        [],
        {},
    ]
    for body in bodies:
        refused = shared.ask(None, body)
        assert (refused.status, refused.code) == (401, "unauthenticated")
    assert not shared.submitted
    hello = shared.ask(None, {"type": "hello", "session_id": "ID-0"})
    assert hello.document["server"] == "torchserve-stateful"
    assert shared.submitted[0].session_ids == ()


def test_other_dialects_keep_to_the_principal(model: Model) -> None:
    """A session header of a chat completion is an id of its principal."""
    shared = server(model)
    conversation(shared, "alice")
    messages = [{"role": "user", "content": "hi"}]
    for principal, status in (("alice", 200), ("bob", 404)):
        body = {"model": "chat", "messages": messages, "max_tokens": 2}
        answered = shared.ask(principal, body, _CHAT, ts_request_sequence_id="ID-0")
        assert answered.status == status
        assert answered.headers["ts_request_sequence_id"] == "ID-0"
    sample = {"requestType": "CLOSE_SESSION", "extSessionID": "ID-0"}
    assert shared.ask("bob", sample).status == 404
    assert shared.ask("alice", sample).status == 200


def test_a_tenant_in_a_body_is_refused(model: Model) -> None:
    """The error names the field."""
    shared = server(model)
    conversation(shared, "alice")
    fork = {"type": "fork", "session_id": "ID-0", "metadata": {"tenant": "bob"}}
    for body in (fork, {"type": "open", "metadata": {"tenant": None}}):
        error = shared.ask("alice", body).document["error"]
        assert (error["code"], error["field"]) == ("invalid_request", "metadata.tenant")
