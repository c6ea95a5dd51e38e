"""Headers of requests and answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_dispatcher import END, EXPIRES, ID, NAMES, START, UNTIL, accepted, last
from tests.support.fake_torchserve import HTTP, Context
from ts_stateful.config.schema import ConfigError
from ts_stateful.frontend.parsing.headers import (
    HeaderNames,
    HeaderReader,
    RequestHeaders,
    check_header_names,
)
from ts_stateful.protocol.errors import InvalidRequest, SessionIdMismatch
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.session_ids import MAX_ID_LENGTH

_MINTED = "ts-seq-0b9fd3a0-7e4e-4d5c-8b0e-0f0f0f0f0f0f"


def read(headers: dict[str, Any], *, minting: bool = False) -> RequestHeaders:
    return RequestHeaders.read(headers, NAMES, minting=minting)


@pytest.mark.parametrize("name", ["Host", "host", "url_path"])
def test_http_rows_are_recognized_by_their_headers(name: str) -> None:
    """A row with a header of HTTP is an HTTP row, whatever its case."""
    assert read({name: ""}).is_http


@pytest.mark.parametrize("headers", [{}, {ID: "a", END: "true"}, {"Host": {"content-type": ""}}])
def test_other_rows_are_grpc(headers: dict[str, Any]) -> None:
    """Session headers come over gRPC too, and an input that is called `Host` is not a header."""
    assert not read(headers).is_http


def test_the_session_header_is_found_in_any_case() -> None:
    """Proxies change the case of header names."""
    assert read({"Ts_Request_Sequence_ID": " a ", "Host": "x"}).session_id() == "a"


def test_a_part_of_the_body_cannot_pose_as_a_header() -> None:
    """Parts of the body share the dict with the headers, as dicts."""
    assert read({ID: {"content-type": "text/plain"}}).session_id() is None


def test_the_same_id_twice_is_one() -> None:
    """Two spellings of the header may carry the same id."""
    assert read({ID: "a", ID.upper(): "a"}).session_id() == "a"


def test_two_different_ids_are_refused() -> None:
    """Which one is meant cannot be known."""
    with pytest.raises(SessionIdMismatch):
        read({ID: "a", ID.upper(): "b"}).session_id()


def test_an_id_that_the_frontend_made_is_not_the_clients() -> None:
    """The frontend of the sequence profile makes ids and sets the start header with them."""
    headers = read({ID: _MINTED, START: "true"}, minting=True)
    assert (headers.minted_id, headers.session_id()) == (_MINTED, None)


def test_an_id_that_the_frontend_overlooked_wins() -> None:
    """The frontend compares names by case: it mints beside a client's header in another case."""
    headers = read({ID: _MINTED, START: "true", ID.upper(): "a"}, minting=True)
    assert (headers.minted_id, headers.session_id()) == (_MINTED, "a")


@pytest.mark.parametrize(
    ("headers", "minting"),
    [
        ({ID: _MINTED}, True),
        ({ID: _MINTED, START: "true"}, False),
        ({ID: "a", START: "true"}, True),
    ],
)
def test_other_ids_are_the_clients(headers: dict[str, str], minting: bool) -> None:
    """A minted id that comes back, a forged start header: an id like any other."""
    assert read(headers, minting=minting).session_id() == headers[ID]


def test_a_made_id_that_comes_again_is_the_clients() -> None:
    """A client sends it back, even with a start header of its own."""
    reader = HeaderReader(NAMES, minting=True)
    made = {ID: _MINTED, START: "true"}
    assert reader.read(made).minted_id == _MINTED
    again = reader.read(made)
    assert (again.minted_id, again.session_id(), again.names_session) == (None, _MINTED, True)
    assert HeaderReader(NAMES).read(made).session_id() == _MINTED


def test_blanks_around_an_id_are_the_headers_alone() -> None:
    """What looks like one, and the id of a gRPC message, are the client's, and refused."""
    assert read({ID: " a\t", "Host": "x"}).session_id() == "a"
    for headers, field in (({ID: "a\xa0", "Host": "x"}, ID), ({ID: " a"}, "sequence_id")):
        with pytest.raises(InvalidRequest) as refused:
            read(headers).session_id()
        assert refused.value.field == field


def test_a_session_header_without_an_id_was_sent() -> None:
    """Which is something else than no header; one that the frontend made was not sent."""
    assert all(read({ID: value}).names_session for value in ("", "NEW_SESSION", "a"))
    assert not read({}).names_session
    assert not read({ID: _MINTED, START: "true"}, minting=True).names_session


def test_the_rest_of_the_path_comes_from_torchserve() -> None:
    """Under a name that is exactly its own."""
    assert read({"url_path": "v1/models", "Host": "x"}).path == "v1/models"
    assert read({"URL_Path": "v1/models", "Host": "x"}).path == ""
    assert read({"url_path": {"content-type": "x"}}).path == ""


def test_describe_is_the_management_apis_alone() -> None:
    """A client's own `describe` header comes with a prediction, and those have a `url_path`."""
    assert read({"describe": "True", "Host": "x"}).is_describe
    assert read({"describe": "True"}).is_describe
    assert not read({"describe": "True", "Host": "x", "url_path": ""}).is_describe
    assert not read({"describe": {"content-type": "True"}}).is_describe


def test_names_come_from_both_of_torchserves_settings() -> None:
    """Frontend and worker read the names from different variables; either may come in."""
    context = Context("chat", "/nowhere", None, 1, None, "0.12.0")
    names = HeaderNames.of(context, {"TS_HEADER_KEY_SEQUENCE_ID": "X-Session"})
    assert names.ids == {ID, "x-session"}
    assert (names.id, names.end) == ("X-Session", END)
    assert names.starts == {START}
    assert names.ends == {END}


def test_answers_have_the_workers_names() -> None:
    """Where it is given any; the frontend's names are still read."""
    context = named_context("X-Worker", "X-Worker-End")
    environ = {
        "TS_REQUEST_SEQUENCE_ID": "X-Worker",
        "TS_REQUEST_SEQUENCE_END": "X-Worker-End",
        "TS_HEADER_KEY_SEQUENCE_ID": "X-Session",
        "TS_HEADER_KEY_SEQUENCE_END": "X-End",
    }
    names = HeaderNames.of(context, environ)
    assert (names.id, names.end) == ("X-Worker", "X-Worker-End")
    assert names.ids == {"x-worker", "x-session"}
    assert names.ends == {"x-worker-end", "x-end"}


def test_sagemakers_session_header_brings_its_closed_session_header() -> None:
    """TS_REQUEST_SEQUENCE_ID alone names the header, and no other name for the end would be understood there."""
    name = "X-Amzn-SageMaker-Session-Id"
    names = HeaderNames.of(named_context(name, END), {"TS_REQUEST_SEQUENCE_ID": name})
    assert (names.id, names.end) == (name, "X-Amzn-SageMaker-Closed-Session-Id")
    environ = {"TS_REQUEST_SEQUENCE_ID": name, "TS_REQUEST_SEQUENCE_END": "X-End"}
    assert HeaderNames.of(named_context(name, "X-End"), environ).end == "X-End"


def named_context(session_id: str, end: str) -> Context:
    """Make TorchServe's context of a worker with these names."""
    context = Context("chat", "/nowhere", None, 1, None, "0.12.0")
    context.header_key_sequence_id = session_id
    context.header_key_sequence_end = end
    return context


def test_an_opened_session_is_announced_with_its_end() -> None:
    """SageMaker's form: one space, whole seconds, UTC, 256 characters at most."""
    event = accepted("r", session_id="a", opened_until=UNTIL)
    assert NAMES.of_answer(event) == {ID: f"a; {EXPIRES}"}
    longest = accepted("r", session_id="a" * MAX_ID_LENGTH, opened_until=UNTIL)
    assert len(NAMES.of_answer(longest)[ID]) == 256


def test_other_answers_carry_the_bare_id() -> None:
    """And those without a session carry nothing."""
    assert NAMES.of_answer(last("r", session_id="a")) == {ID: "a"}
    assert NAMES.of_answer(last("r")) == {}


def test_a_closed_session_is_announced_by_the_end_header() -> None:
    """SageMaker ends the stickiness then."""
    assert NAMES.of_answer(last("r", session_id="a", closed=True)) == {END: "a"}


def test_a_name_that_only_the_frontend_knows_is_refused_in_the_sequence_profile() -> None:
    """The worker would see no id at all, and all users would share a session."""
    environ = {"TS_HEADER_KEY_SEQUENCE_ID": "X-Session"}
    with pytest.raises(ConfigError, match="TS_REQUEST_SEQUENCE_ID=X-Session"):
        check_header_names(Profile.SEQUENCE, environ)
    check_header_names(Profile.CONTINUOUS, environ)
    check_header_names(Profile.SEQUENCE, {**environ, "TS_REQUEST_SEQUENCE_ID": "X-Session"})
    check_header_names(Profile.SEQUENCE, {})


def test_a_start_header_beside_a_made_id_is_torchserves() -> None:
    """It would begin the sequence again that the body names; beside an id of the client it is the client's."""
    reader = HeaderReader(NAMES, minting=True)
    made = {**HTTP, ID: "ts-seq-1", START: "true"}
    assert not reader.read(made).starts
    assert reader.read(made).starts
    assert reader.read({**made, ID: "own"}).starts
