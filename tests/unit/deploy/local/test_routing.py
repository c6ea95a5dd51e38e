"""Routing: sessions stay on their instance, and new ones go to the least loaded one."""

from __future__ import annotations

import pytest

from deploy.sagemaker.local.errors import ServiceError
from deploy.sagemaker.local.routing import Instance, Router, parse_opened
from tests.support.clock import FakeClock
from ts_stateful.protocol.sagemaker import is_session_id

AT = 1_700_000_000  # 2023-11-14T22:13:20Z, the Unix time of a new FakeClock
IN_A_MINUTE = "2023-11-14T22:14:20Z"


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands at `AT`."""
    return FakeClock()


@pytest.fixture
def router(clock: FakeClock) -> Router:
    """Return a router with three instances."""
    return Router([Instance(f"http://{number}") for number in (1, 2, 3)], clock)


def test_a_session_stays_on_its_instance_until_it_expires(router: Router, clock: FakeClock) -> None:
    """Its instance serves it up to the second in `Expires`; then the session is unknown."""
    third = router.instances[2]
    router.opened(f"abc; Expires={IN_A_MINUTE}", third)
    clock.now += 59.9
    assert router.choose("abc") is third
    clock.now += 0.1
    with pytest.raises(ServiceError, match="Session abc not found"):
        router.choose("abc")
    assert not router.num_sessions()


def test_a_session_that_was_closed_is_unknown(router: Router) -> None:
    """The container reports a closed session; closing an unknown one changes nothing."""
    router.opened(f"abc; Expires={IN_A_MINUTE}", router.instances[0])
    router.closed("other")
    assert router.choose("abc") is router.instances[0]
    router.closed("abc")
    with pytest.raises(ServiceError) as caught:
        router.choose("abc")
    assert (caught.value.code, caught.value.status) == ("ValidationError", 400)


def test_a_new_session_goes_to_the_least_loaded_instance(router: Router) -> None:
    """Requests in flight count first, then open sessions."""
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
    """They stay there when the first instance returns, which has lost them."""
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
    "header",
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
def test_other_headers_open_no_session(router: Router, header: str) -> None:
    """A bare id opens no session, nor does a header of another form."""
    router.opened(header, router.instances[0])
    assert not router.num_sessions()


def test_expires_is_utc() -> None:
    """The timestamp is UTC in every time zone of the machine."""
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
