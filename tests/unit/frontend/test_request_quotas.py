"""Quotas of each principal: bytes in flight, before a request is parsed, and choices of one request."""

from __future__ import annotations

import pytest

from tests.support.fake_dispatcher import NAMES, FixedSeeds, ScriptedDispatcher
from tests.support.fake_front import FakeFront, client_of
from ts_stateful.config.access import HeaderAuth
from ts_stateful.config.limits import Quota, QuotasConfig
from ts_stateful.frontend.admission import Admission
from ts_stateful.frontend.inbox import Inbox
from ts_stateful.frontend.intake import Intake
from ts_stateful.frontend.parsing.headers import HeaderReader
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.frontend.request_quotas import RequestQuotas
from ts_stateful.principals.authenticator import ProxyHeader
from ts_stateful.protocol.errors import InvalidRequest, QuotaExceeded
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Prompt


@pytest.fixture
def dispatcher() -> ScriptedDispatcher:
    """A dispatcher that counts what a test says."""
    return ScriptedDispatcher(Inbox())


def test_bytes_are_bounded_for_each(dispatcher: ScriptedDispatcher) -> None:
    """The only request of a principal may be larger; another quota may be named for a principal."""
    settings = QuotasConfig(queued_bytes=100, principals={"big": Quota(queued_bytes=1000)})
    quotas = RequestQuotas(settings, dispatcher)
    dispatcher.by_principal = {"a": 60, "big": 60, None: 100}
    quotas.check("a", 40)
    quotas.check("b", 1_000_000)
    quotas.check("big", 940)
    for principal, num_bytes in (("a", 41), ("big", 941), (None, 1)):
        with pytest.raises(QuotaExceeded) as caught:
            quotas.check(principal, num_bytes)
        error = caught.value
        assert (error.field, error.retry_after_s) == ("handler.quotas.queuedBytes", 1.0)


def test_without_a_quota_nothing_is_counted(dispatcher: ScriptedDispatcher) -> None:
    """A principal may have one of its own all the same."""
    quotas = RequestQuotas(QuotasConfig(principals={"a": Quota(queued_bytes=1)}), dispatcher)
    dispatcher.by_principal = {"a": 10**9, "b": 10**9}
    quotas.check("b", 10**9)
    with pytest.raises(QuotaExceeded):
        quotas.check("a", 1)


def test_a_request_beyond_it_is_not_parsed(dispatcher: ScriptedDispatcher) -> None:
    """It is answered with 429, the quota's name and the time to wait, and never reaches an engine."""
    admission = Admission(
        ProxyHeader(HeaderAuth(header="X-P")),
        quotas=RequestQuotas(QuotasConfig(queued_bytes=10), dispatcher),
    )
    parser = RequestParser(Profile.CONTINUOUS, NAMES, rng=FixedSeeds())
    mailbox = dispatcher.mailbox
    assert isinstance(mailbox, Inbox)
    intake = Intake(dispatcher, mailbox, parser, HeaderReader(NAMES), admission)
    dispatcher.by_principal = {"a": 8}
    headers = {"Host": "x", "url_path": "", "Content-Type": "application/json"}
    statuses = {}
    for principal in ("a", "b"):
        body = {"body": b'{"prompt": 1}' if principal == "a" else b'{"type": "hello"}'}
        pending = intake.take(principal, body, {**headers, "X-P": principal})
        pending.add(mailbox.take(principal))
        statuses[principal] = pending.next()
    refused = statuses["a"]
    assert refused is not None
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    assert b"handler.quotas.queuedBytes" in refused.body
    assert set(dispatcher.submitted) == {"b"}


def test_choices_beyond_the_turns_in_flight_are_refused(dispatcher: ScriptedDispatcher) -> None:
    """They never fit, so waiting is no use; a single turn waits for others."""
    settings = QuotasConfig(turns_in_flight=2, principals={"big": Quota(turns_in_flight=3)})
    admission = Admission(quotas=RequestQuotas(settings, dispatcher))
    for principal, count in ((None, 2), ("a", 2), ("big", 3)):
        admission.check(Submit("r", Prompt(prompt="x"), principal=principal, choices=count))
        with pytest.raises(InvalidRequest, match=f"{count + 1} choices are more") as caught:
            admission.check(Submit("r", Prompt(prompt="x"), principal=principal, choices=count + 1))
        assert (caught.value.field, caught.value.retryable) == ("n", False)
    none = Admission(quotas=RequestQuotas(QuotasConfig(), dispatcher))
    none.check(Submit("r", Prompt(prompt="x"), choices=128))


def test_a_completion_with_too_many_choices_names_them() -> None:
    """Over HTTP, whether they are of one prompt or of several; nothing reaches an engine."""
    front = FakeFront(document={"handler": {"quotas": {"turnsInFlight": 2}}})
    with client_of(front) as client:
        for body in ({"prompt": "x", "n": 3}, {"prompt": ["x", "y", "z"]}):
            answer = client.post("/v1/completions", json={"model": "chat", **body})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "invalid_request")
            assert error["param"] == "n"
    assert not front.dispatcher.submitted
