"""Images that do not fit into a request, over every transport: they are uploaded in parts, unnoticed by the caller."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from tests.support.fake_client import PROFILES, FakeTime, connected
from tests.support.fake_sessions import FakeSessions, Fault, reply_to
from ts_stateful.client import ServerUnreachable
from ts_stateful.protocol.errors import (
    EngineUnavailable,
    InvalidRequest,
    MediaTooLarge,
    SessionExpired,
)

LIMIT = 20_000
LARGE = bytes(range(256)) * 200  # 51,200 bytes: four parts
HALF = b"half" * 2_500  # one fits, two do not
REFERENCE = {"upload": hashlib.sha256(LARGE).hexdigest()}


@pytest.fixture(params=PROFILES)
def fake(request: pytest.FixtureRequest) -> FakeSessions:
    """Return a server in each profile over gRPC, one over HTTP, and an endpoint of SageMaker."""
    return FakeSessions(profile=request.param)


@pytest.fixture
def http() -> FakeSessions:
    """Return one server, for tests that do not depend on the transport."""
    return FakeSessions(profile="http")


def inline(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


def images_of(request: dict[str, Any]) -> Any:
    return request.get("images")


def test_a_large_image_goes_ahead_of_its_prompt(fake: FakeSessions, time: FakeTime) -> None:
    """It is uploaded into its session in parts that fit; a second prompt finds it there."""
    with connected(fake, time, max_body_bytes=LIMIT) as server, server.open() as session:
        assert session.ask("Hello", images=[LARGE]) == reply_to("Hello")
        assert "".join(session.prompt("Again", images=[LARGE])) == reply_to("Again")
        parts = fake.of_kind("upload")
        assert [(part["part"], part["parts"]) for part in parts] == [(n, 4) for n in range(4)]
        assert {part["session_id"] for part in parts} == {session.session_id}
    assert b"".join(base64.b64decode(part["base64"]) for part in parts) == LARGE
    assert [images_of(prompt) for prompt in fake.of_kind("prompt")] == [[REFERENCE]] * 2


def test_parts_are_small_whatever_fits(http: FakeSessions, time: FakeTime) -> None:
    """A server generates nothing while it reads a part."""
    with connected(http, time) as server, server.open() as session:
        session.ask("Hello", images=[bytes(5_000_000)])
    sizes = [len(part["base64"]) for part in http.of_kind("upload")]
    assert sizes == [1_000_000] * 6 + [666_668]


def test_images_that_fit_go_along(http: FakeSessions, time: FakeTime) -> None:
    """A URL is no file, however long."""
    url = f"data:image/png;base64,{'A' * 1000}"
    with connected(http, time, max_body_bytes=LIMIT) as server:
        session = server.open(images=[HALF, url])
        session.ask("Hello", images=[HALF])
    assert images_of(http.of_kind("open")[0]) == [inline(HALF), {"url": url}]
    assert images_of(http.of_kind("prompt")[0]) == [inline(HALF)]
    assert http.of_kind("upload") == []


def test_images_that_fit_one_by_one_go_ahead_where_all_do_not(
    http: FakeSessions, time: FakeTime
) -> None:
    """The body as a whole is what counts, its text too; URLs stay where they are."""
    other = HALF[::-1]
    with connected(http, time, max_body_bytes=LIMIT) as server, server.open() as session:
        session.ask("Hello", images=[HALF, "https://example.com/a.png", other])
        session.ask("x" * 8_000, images=[HALF])
    first, second = (images_of(prompt) for prompt in http.of_kind("prompt"))
    assert [list(image) for image in first] == [["upload"], ["url"], ["upload"]]
    assert second == first[:1]
    assert len(http.of_kind("upload")) == 2


def test_the_first_prompt_carries_what_open_could_not(fake: FakeSessions, time: FakeTime) -> None:
    """Only the first prompt has them, before its own images; the rest of `open` is unchanged."""
    with connected(fake, time, max_body_bytes=LIMIT) as server:
        session = server.open(system="Be short.", images=[LARGE])
        session.ask("Hello", images=[b"own"])
        session.ask("Again")
    opened = fake.of_kind("open")[0]
    assert (opened["system"], images_of(opened)) == ("Be short.", None)
    first, second = fake.of_kind("prompt")
    assert images_of(first) == [REFERENCE, {"upload": hashlib.sha256(b"own").hexdigest()}]
    assert images_of(second) is None


def test_clips_are_uploaded_as_images_are(http: FakeSessions, time: FakeTime) -> None:
    """They stay clips, those of `open` in the first prompt too."""
    with connected(http, time, max_body_bytes=LIMIT) as server:
        session = server.open(audio=[LARGE])
        session.ask("Hello", audio=[b"own"])
        session.ask("Again", audio=[LARGE])
    first, second = http.of_kind("prompt")
    assert first["audio"] == [REFERENCE, {"upload": hashlib.sha256(b"own").hexdigest()}]
    assert second["audio"] == [REFERENCE]
    assert (images_of(first), images_of(second)) == (None, None)


def test_every_first_prompt_carries_them(http: FakeSessions, time: FakeTime) -> None:
    """After a rewind to the opening, and in a fork of it, the next prompt is a first one; not in a later fork."""
    with connected(http, time, max_body_bytes=LIMIT) as server:
        session = server.open(images=[LARGE])
        early = session.fork()
        session.ask("Hello")
        late = session.fork()
        early.ask("Early")
        late.ask("Late")
        session.rewind(0)
        session.ask("Over")
    shown = {prompt["prompt"]: images_of(prompt) for prompt in http.of_kind("prompt")}
    assert shown == {"Hello": [REFERENCE], "Early": [REFERENCE], "Late": None, "Over": [REFERENCE]}
    assert {part["session_id"] for part in http.of_kind("upload")} == {
        session.session_id,
        early.session_id,
    }


def test_a_session_that_is_opened_again_gets_them_again(http: FakeSessions, time: FakeTime) -> None:
    """It has its own uploads, under its new id."""
    with connected(http, time, max_body_bytes=LIMIT) as server:
        session = server.open(images=[LARGE], reopen=True)
        session.ask("Hello")
        http.fail("prompt", Fault(error=SessionExpired("it ran out")))
        assert session.ask("Again") == reply_to("Again")
    assert session.num_reopened == 1
    assert images_of(http.of_kind("prompt")[-1]) == [REFERENCE]
    assert len({part["session_id"] for part in http.of_kind("upload")}) == 2


def test_an_upload_that_is_lost_is_repeated(http: FakeSessions, time: FakeTime) -> None:
    """The server may drop an upload at any time; the prompt is sent again after the next upload."""
    with connected(http, time, max_body_bytes=LIMIT) as server, server.open() as session:
        session.ask("Hello", images=[LARGE])
        http.uploads.clear()
        assert session.ask("Again", images=[LARGE]) == reply_to("Again")
    assert len(http.of_kind("upload")) == 8
    assert len(http.of_kind("prompt")) == 3


def test_a_server_that_loses_every_upload_is_given_up(http: FakeSessions, time: FakeTime) -> None:
    """It has as many attempts as other failures."""
    lost = Fault(error=InvalidRequest("no such upload", field="images[0].upload"))
    http.fail("prompt", *[lost] * 10)
    with (
        connected(http, time, max_body_bytes=LIMIT) as server,
        server.open() as session,
        pytest.raises(InvalidRequest, match="no such upload"),
    ):
        session.ask("Hello", images=[LARGE])
    assert len(http.of_kind("prompt")) == 1 + time.policy().max_retries


def test_parts_that_fail_on_the_way_are_repeated(fake: FakeSessions, time: FakeTime) -> None:
    """Only the failed part is sent again, also if it had arrived."""
    faults = (Fault(lost=True), Fault(), Fault(error=EngineUnavailable("later")))
    fake.fail("upload", *faults)
    with connected(fake, time, max_body_bytes=LIMIT) as server, server.open() as session:
        assert session.ask("Hello", images=[LARGE]) == reply_to("Hello")
    assert [part.get("part", 0) for part in fake.of_kind("upload")] == [0, 0, 0, 0, 1, 2, 3]


def test_parts_that_the_server_has_dropped_are_repeated(http: FakeSessions, time: FakeTime) -> None:
    """The server's last answer names them."""
    with connected(http, time, max_body_bytes=LIMIT) as server, server.open() as session:
        place = (session.session_id, REFERENCE["upload"])
        http.uploads[place] = {}
        keep = http._upload

        def drops_once(request: dict[str, Any]) -> dict[str, Any]:
            answer = keep(request)
            if len(http.of_kind("upload")) == 2:
                del http.uploads[place][0]
            return answer

        http._upload = drops_once  # type: ignore[method-assign]
        session.ask("Hello", images=[LARGE])
    assert [part["part"] for part in http.of_kind("upload")] == [0, 1, 2, 3, 0]


def test_what_the_server_refuses_is_raised(http: FakeSessions, time: FakeTime) -> None:
    """The reply raises the error, and nothing is sent again."""
    http.fail("upload", Fault(error=MediaTooLarge("too large", field="base64")))
    with connected(http, time, max_body_bytes=LIMIT) as server:
        session = server.open(images=[LARGE])
        with pytest.raises(MediaTooLarge):
            session.ask("Hello")
    assert http.of_kind("prompt") == []
    assert len(http.of_kind("upload")) == 1


def test_a_server_that_goes_away_between_parts_is_unreachable(
    http: FakeSessions, time: FakeTime
) -> None:
    """The error comes after the last attempt."""
    http.fail("upload", *[Fault()] * 100)
    with connected(http, time, max_body_bytes=LIMIT, timeout_s=20.0) as server:
        session = server.open()
        with pytest.raises(ServerUnreachable):
            session.ask("Hello", images=[LARGE])
