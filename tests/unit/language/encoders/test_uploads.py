"""Image files that are uploaded in parts: what is kept, for how long, and prompts that use them."""

from __future__ import annotations

import base64
import gc
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.harness import Harness
from tests.support.pictures import noise, png
from tests.support.tiny import llama, llava
from ts_stateful.config.schema import MediaConfig
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.encoders.loader import ReadImage
from ts_stateful.language.network.load import Model
from ts_stateful.media.load import MediaLoader
from ts_stateful.protocol.requests import (
    Close,
    Fork,
    Image,
    Info,
    Media,
    Open,
    Prompt,
    Request,
    Upload,
)


class LoadingHarness(Harness):
    """An engine that loads what was uploaded, as a server does."""

    def read_all(
        self, images: Sequence[Media], files: Sequence[bytes], read: ReadImage
    ) -> list[MediaInput]:
        loader = MediaLoader(MediaConfig())
        try:
            return loader.load(images, files, read).result()
        finally:
            loader.close()


@pytest.fixture(scope="module")
def model() -> Model:
    """A model that sees."""
    return llava()


@pytest.fixture
def harness(model: Model) -> Harness:
    """An engine with a session `s`, whose uploads may be as large as two pictures."""
    media = {"maxImages": 2, "maxBytes": 20_000, "maxUploadBytes": 2 * len(FILE) + 100}
    harness = LoadingHarness(model, {"handler": {"media": media}})
    harness.open("s")
    return harness


FILE = png(noise(1))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parts_of(data: bytes, count: int, session_id: str = "s") -> list[Upload]:
    """Return the requests that upload a file."""
    size = -(-len(data) // count)
    return [
        Upload(
            session_id=session_id,
            sha256=digest(data),
            part=number,
            parts=count,
            base64=base64.b64encode(data[number * size : (number + 1) * size]).decode(),
        )
        for number in range(count)
    ]


def upload(harness: Harness, data: bytes, session_id: str = "s") -> None:
    """Upload a file in one part."""
    assert harness.ask(parts_of(data, 1, session_id)[0])["complete"]


def look(*files: bytes, session_id: str = "s") -> Prompt:
    """Return a prompt about uploaded files."""
    images = tuple(Image(upload=digest(data)) for data in files)
    return Prompt(session_id=session_id, prompt="What?", images=images, max_new_tokens=4)


def refusal(harness: Harness, command: Request, **fields: Any) -> tuple[str, str | None]:
    """Return the code and the field of the error."""
    error = harness.ask(command, **fields)["error"]
    return error["code"], error.get("field")


def test_parts_come_in_any_order_and_repeatedly(harness: Harness) -> None:
    """Every answer has the number of parts and the missing ones; the last one reports the file as complete."""
    parts = parts_of(FILE, 4)
    answers = [harness.ask(parts[number]) for number in (2, 0, 2, 3, 1, 0)]
    assert [answer["missing"] for answer in answers] == [[0, 1, 3], [1, 3], [1, 3], [1], [], []]
    assert [answer["received"] for answer in answers] == [1, 2, 2, 3, 4, 4]
    assert [answer["complete"] for answer in answers] == [False] * 4 + [True] * 2
    assert (answers[0]["session_id"], answers[0]["sha256"]) == ("s", digest(FILE))


def test_an_upload_is_the_same_image_as_any_other(harness: Harness) -> None:
    """The reply is that to the same file in the request itself, the first time and again."""
    harness.open("t")
    for part in parts_of(FILE, 3):
        harness.ask(part)
    text = base64.b64encode(FILE).decode()
    expected = harness.ask(
        Prompt(session_id="t", prompt="What?", images=(Image(base64=text),), max_new_tokens=4)
    )
    answer = harness.ask(look(FILE))
    assert answer["text"] == expected["text"]
    assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
    assert harness.ask(look(FILE))["turn"] == 2


def test_a_part_may_be_the_file_of_a_form(harness: Harness) -> None:
    """Its bytes are taken as they are; there is one part, neither none nor two."""
    part = parts_of(FILE, 1)[0]
    bare = Upload(session_id="s", sha256=part.sha256)
    assert refusal(harness, bare) == ("invalid_request", "base64")
    assert refusal(harness, part, attachments=(FILE,)) == ("invalid_request", "base64")
    assert harness.ask(bare, attachments=(FILE,))["complete"]


def test_a_part_after_the_last_one_is_refused(harness: Harness) -> None:
    """Parts are counted from 0."""
    part = Upload(session_id="s", sha256=digest(FILE), part=2, parts=2, base64="AAAA")
    assert refusal(harness, part) == ("invalid_request", "part")


def test_another_hash_is_refused_and_nothing_is_kept(harness: Harness) -> None:
    """The parts are forgotten, so that the file can be uploaded again."""
    first, second = parts_of(FILE, 2)
    harness.ask(first)
    wrong = Upload(session_id="s", sha256=first.sha256, part=1, parts=2, base64="AAAA")
    assert refusal(harness, wrong) == ("media_invalid", "sha256")
    assert harness.ask(second)["missing"] == [0]
    assert harness.ask(first)["complete"]


def test_a_part_that_is_not_base64_changes_nothing(harness: Harness) -> None:
    """The others stay."""
    first, second = parts_of(FILE, 2)
    harness.ask(first)
    broken = Upload(session_id="s", sha256=first.sha256, part=1, parts=2, base64="&")
    assert refusal(harness, broken) == ("media_invalid", "base64")
    assert harness.ask(second)["complete"]


def test_another_number_of_parts_begins_again(harness: Harness) -> None:
    """Parts of two sizes are not mixed."""
    harness.ask(parts_of(FILE, 2)[0])
    assert harness.ask(parts_of(FILE, 3)[1])["missing"] == [0, 2]


def test_what_is_not_there_is_named(harness: Harness) -> None:
    """An unknown upload, half an upload, and one of another session, also of the fork's source."""
    upload(harness, FILE)
    harness.ask(Fork(session_id="s", new_session_id="f"), creates_session=True)
    half = parts_of(b"abcdef", 2)[0]
    harness.ask(half)
    named = ("invalid_request", "images[1].upload")
    assert refusal(harness, look(FILE, b"unknown")) == named
    assert refusal(harness, look(FILE, b"abcdef")) == named
    assert refusal(harness, look(FILE, session_id="f")) == (named[0], "images[0].upload")
    assert harness.ask(look(FILE))["turn"] == 1


def test_a_session_is_opened_without_uploads(harness: Harness) -> None:
    """A session has none before it is open, and a rejected opening leaves nothing."""
    command = Open(session_id="n", images=(Image(upload=digest(FILE)),))
    assert refusal(harness, command, creates_session=True) == (
        "invalid_request",
        "images[0].upload",
    )
    assert (
        refusal(harness, look(FILE, session_id="n"), creates_session=True)[1] == "images[0].upload"
    )
    assert refusal(harness, parts_of(FILE, 1, "n")[0]) == ("session_not_found", "session_id")


def test_a_file_that_is_no_image_is_named(harness: Harness) -> None:
    """The prompt reports it."""
    upload(harness, b"no image")
    assert refusal(harness, look(b"no image")) == ("media_invalid", "images[0].upload")


def test_a_file_that_is_too_large_is_refused(harness: Harness) -> None:
    """As soon as its parts exceed `maxBytes`; they are dropped."""
    data = bytes(20_001)
    first, second = parts_of(data, 2)
    harness.ask(first)
    assert refusal(harness, second) == ("media_too_large", "base64")
    assert harness.ask(second)["missing"] == [0]


def test_a_session_keeps_so_many_uploads(harness: Harness) -> None:
    """Beyond `maxImages` the least recently used one is dropped, complete or not."""
    upload(harness, FILE)
    harness.ask(parts_of(b"half", 2)[0])
    harness.ask(look(FILE))
    upload(harness, b"third")
    assert harness.ask(parts_of(b"half", 2)[1])["missing"] == [0]
    assert refusal(harness, look(FILE))[1] == "images[0].upload"


def test_all_sessions_together_keep_so_many_bytes(harness: Harness) -> None:
    """Beyond `maxUploadBytes` the least recently used ones of any session are dropped."""
    for session_id in ("t", "u"):
        harness.open(session_id)
    for session_id in ("s", "t"):
        upload(harness, FILE, session_id)
    harness.ask(look(FILE))
    upload(harness, FILE, "u")
    assert refusal(harness, look(FILE, session_id="t"))[1] == "images[0].upload"
    assert harness.ask(look(FILE, session_id="s"))["turn"] == 2
    assert harness.ask(look(FILE, session_id="u"))["turn"] == 1


def test_uploads_end_with_their_session(harness: Harness) -> None:
    """Nothing of them remains."""
    upload(harness, FILE)
    kept = harness.kind.requests.uploads._files
    assert len(kept) == 1
    harness.close("s")
    gc.collect()
    assert len(kept) == 0


def test_a_model_that_sees_nothing_takes_no_uploads() -> None:
    """The request is rejected, because they would be useless."""
    harness = Harness(llama())
    harness.open("s")
    assert refusal(harness, parts_of(FILE, 1)[0]) == ("invalid_request", "type")


def test_an_upload_is_a_use_of_its_session(harness: Harness) -> None:
    """The session does not expire during the upload of a large file."""
    harness.clock.now += 5
    upload(harness, FILE)
    harness.clock.now += 1
    assert harness.ask(Info(session_id="s"))["idle_s"] == 1


def test_statistics_count_the_bytes_of_uploads(harness: Harness) -> None:
    """Both parts and complete files count, until their session ends."""
    first, *others = parts_of(FILE, 3)
    harness.ask(first)
    assert 0 < harness.engine.stats().upload_bytes < len(FILE)
    for part in others:
        harness.ask(part)
    assert harness.engine.stats().upload_bytes == len(FILE)
    harness.ask(Close(session_id="s"))
    gc.collect()
    assert harness.engine.stats().upload_bytes == 0
