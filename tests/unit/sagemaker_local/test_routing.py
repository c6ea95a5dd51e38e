"""sagemaker_local.routing and sagemaker_api: sessions stay where they are, and new ones go where there is room."""

from __future__ import annotations

import pytest

from tests.support.fake_client import FakeTime
from ts_stateful.protocol.sagemaker import is_session_id, parse_opened
from ts_stateful.sagemaker_local.errors import ServiceError
from ts_stateful.sagemaker_local.routing import Instance, Router

AT = 1_700_000_000  # 2023-11-14T22:13:20Z
IN_A_MINUTE = "2023-11-14T22:14:20Z"


@pytest.fixture
def time() -> FakeTime:
    """A clock that stands at `AT`."""
    time = FakeTime()
    time.now = AT
    return time


@pytest.fixture
def router(time: FakeTime) -> Router:
    """Three instances."""
    return Router([Instance(f"http://{number}") for number in (1, 2, 3)], time.monotonic)


def test_a_session_stays_on_its_instance_until_it_expires(router: Router, time: FakeTime) -> None:
    """It is found where its container opened it up to the second that `Expires` names, and then nowhere."""
    third = router.instances[2]
    router.opened(f"abc; Expires={IN_A_MINUTE}", third)
    time.now = AT + 59.9
    assert router.choose("abc") is third
    time.now = AT + 60
    with pytest.raises(ServiceError, match="Session abc not found"):
        router.choose("abc")
    assert not router.num_sessions()


def test_a_session_that_was_closed_is_unknown(router: Router) -> None:
    """Closing is learned from the container too; closing what is not there changes nothing."""
    router.opened(f"abc; Expires={IN_A_MINUTE}", router.instances[0])
    router.closed("other")
    assert router.choose("abc") is router.instances[0]
    router.closed("abc")
    with pytest.raises(ServiceError) as caught:
        router.choose("abc")
    assert (caught.value.code, caught.value.status) == ("ValidationError", 400)


def test_a_new_session_goes_to_the_least_loaded_instance(router: Router) -> None:
    """Requests in flight count first, open sessions where these are as many."""
    first, second, third = router.instances
    assert router.choose(None) is first
    router.opened(f"a; Expires={IN_A_MINUTE}", first)
    router.opened(f"b; Expires={IN_A_MINUTE}", second)
    assert router.choose(None) is third
    with third.serving():
        assert router.choose(None) in (first, second)
        with first.serving(), second.serving(), second.serving():
            assert router.choose(None) is third
    assert [instance.num_requests for instance in router.instances] == [0, 0, 0]


def test_sessions_of_an_instance_that_stopped_go_to_another_and_stay(router: Router) -> None:
    """Also when the first one is back, which has lost them."""
    first, second, third = router.instances
    router.opened(f"a; Expires={IN_A_MINUTE}", first)
    router.opened(f"b; Expires={IN_A_MINUTE}", second)
    first.in_service = False
    assert router.choose("a") is third
    assert router.choose("b") is second
    first.in_service = True
    assert router.choose("a") is third


def test_without_an_instance_the_service_is_unavailable(router: Router) -> None:
    """A known session and a new one get the same answer; an unknown one is still unknown."""
    router.opened(f"a; Expires={IN_A_MINUTE}", router.instances[0])
    for instance in router.instances:
        instance.in_service = False
    for session_id in ("a", None):
        with pytest.raises(ServiceError) as caught:
            router.choose(session_id)
        assert (caught.value.code, caught.value.status) == ("ServiceUnavailable", 503)
    with pytest.raises(ServiceError, match="not found"):
        router.choose("b")


@pytest.mark.parametrize(
    "told",
    [
        "abc",
        "",
        "abc;Expires=2023-11-14T22:14:20Z",
        "abc; Expires=2023-11-14T22:14:20",
        "abc; Expires=2023-13-14T22:14:20Z",
        "a_b; Expires=2023-11-14T22:14:20Z",
        "abc; Expires=2023-11-14T22:14:20Z; Path=/",
    ],
)
def test_what_is_no_opening_is_not_learned(router: Router, told: str) -> None:
    """A bare id, and anything that the service's pattern does not have, opens nothing."""
    router.opened(told, router.instances[0])
    assert not router.num_sessions()


def test_expires_is_utc() -> None:
    """The timestamp is read as UTC, whatever the machine's time zone."""
    opened = parse_opened("abc; Expires=2023-11-14T22:13:20Z")
    assert opened is not None
    assert opened.expires_at == AT


@pytest.mark.parametrize(
    ("text", "is_id"),
    [("a", True), ("a-b--c", True), ("A" * 256, True)]
    + [(text, False) for text in ("", "-a", "a-", "a_b", "a.b", "a\n", "\u00e4", "A" * 257)]
    + [("NEW_SESSION", False), ("a-" * 100_000, False)],
)
def test_ids_have_the_services_form(text: str, is_id: bool) -> None:
    """Letters, digits and hyphens between them, 256 at most."""
    assert is_session_id(text) is is_id
