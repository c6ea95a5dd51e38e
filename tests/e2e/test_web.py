"""The chat page as its users see it, in a real Chromium; see tests/e2e/web_page.py."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import yaml
from PIL import Image

from tests.e2e.server import ROOT, START_TIMEOUT_S, WINDOW, endless_model, log_path
from tests.e2e.web_page import SCENE, WebPage, chat_page, launch_options, opened
from tests.support.fake_servers import grpc_server
from tests.support.fake_sessions import FakeSessions
from tests.support.ports import free_ports
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytest.importorskip("gradio", reason="needs the extra `web`")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.xdist_group("web"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium in the PATH"),
]

SHOTS = ROOT / "build" / "web"  # docs/chat.md names the command that copies them
HOSTILE = "<img src=http://example.com/a.png onerror=alert(1)><script>alert(2)</script>"
# More sessions than a browser stores, which is some 5 million characters.
_FILL = """() => {
  const prefix = Object.keys(sessionStorage).find((key) => key.startsWith("ts-stateful:"));
  const turns = [{ prompt: "w".repeat(100_000), files: [] }];
  try {
    for (let at = 1; ; at++) localStorage.setItem(`${prefix}old${at}`, JSON.stringify({ id: `old${at}`, at, turns }));
  } catch {}
  try {
    for (let n = 0; ; n++) localStorage.setItem(`rest${n}`, "w".repeat(100));
  } catch {}
}"""
_TEXTS = """() => {
  const box = document.querySelector(".pane textarea");
  const text = () => {
    const data = new DataTransfer();
    data.setData("text/plain", "a");
    return data;
  };
  const copied = text();
  copied.items.add(new File(["x"], "a.png", { type: "image/png" }));
  const options = { bubbles: true, cancelable: true };
  return [
    new DragEvent("dragover", { ...options, dataTransfer: text() }),
    new DragEvent("drop", { ...options, dataTransfer: text() }),
    new ClipboardEvent("paste", { ...options, clipboardData: copied }),
  ].map((event) => {
    box.dispatchEvent(event);
    return event.defaultPrevented;
  });
}"""
_HEARD = """() => {
  window.heard = [];
  const region = document.querySelector("body > [role=status]");
  new MutationObserver(() => heard.push(region.textContent)).observe(region, { childList: true });
}"""
_CASES = {"How many shapes are there?": "three", "What color is the circle?": "red"}


class Served:
    """A server with a store, which can be stopped and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        document = yaml.safe_load((ROOT / "model-config.yaml").read_text())
        document["handler"]["store"] = {"url": (folder / "store").as_uri(), "timeoutSec": 60}
        self._config = folder / "model-config.yaml"
        self._config.write_text(yaml.safe_dump(document))
        self._model = endless_model(folder / "model")
        self._ports = free_ports()
        self.server = self.start()

    def start(self) -> AsgiServer:
        """Start it."""
        settings = AsgiServerSettings(
            (str(self._model),),
            config=self._config,
            ports=self._ports,
            log_file=log_path("web"),
            start_timeout_s=START_TIMEOUT_S,
        )
        self.server = AsgiServer(settings)
        self.server.start()
        return self.server

    def kill(self) -> None:
        """End it as a crash does: no turn is finished, and nothing more is written."""
        for engine in self.server.engines():
            engine.kill()
        self.server.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo's model with a wide window, without TorchServe."""
    served = Served(tmp_path_factory.mktemp("web"))
    try:
        yield served
    finally:
        served.server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of all tests; each has a context of its own."""
    with (
        playwright.sync_playwright() as tools,
        contextlib.closing(tools.chromium.launch(**launch_options(str(CHROMIUM)))) as browser,
    ):
        yield browser


@pytest.fixture(scope="module")
def url(served: Served) -> Iterator[str]:
    """The page's address."""
    with chat_page(served.server.grpc_url) as url:
        yield url


@pytest.fixture
def tab(browser: Browser, url: str) -> Iterator[WebPage]:
    """A page in a browser without a history."""
    with opened(browser, url) as tab:
        yield tab


def shoot(tab: WebPage, name: str) -> None:
    """Keep a picture of what the page shows."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    taken = Image.open(io.BytesIO(tab.page.screenshot(animations="disabled")))
    taken.convert("RGB").quantize(128).save(
        SHOTS / f"{name}.png", optimize=True
    )  # a third of the bytes


def test_the_stream_of_a_page_that_was_left_is_no_failure(url: str) -> None:
    """As after a reload in mid-reply; nothing is printed, which `chat_page` checks at the end."""
    address = f"{url}/gradio_api/queue/data?session_hash=left"
    with httpx.stream("GET", address) as answer:  # which Gradio does not end as HTTP does
        event = next(answer.iter_lines())
    assert json.loads(event.removeprefix("data:"))["session_not_found"]


def test_other_hosts_get_nothing(url: str) -> None:
    """The page answers to the names of this machine alone, in no frame, and gives out no file but uploads."""
    answer = httpx.get(url)
    assert answer.status_code == 200
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert httpx.get(url, headers={"Host": "example.com"}).status_code == 400
    assert httpx.get(f"{url}/gradio_api/file={ROOT}/setup.cfg").status_code == 403
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        sent = httpx.post(
            f"{url}/gradio_api/upload",
            headers={"Sec-Fetch-Site": site},
            files={"files": ("a.png", b"content")},
        )
        assert sent.status_code == status


def test_a_conversation_goes_on_in_forks(tab: WebPage) -> None:
    """A picture is computed once; a fork stands beside its source, and a rewind leaves the other session as it was."""
    tab.upload(SCENE)
    assert {question: tab.ask(question) for question in _CASES} == _CASES
    assert tab.ask("And the square?") == "blue"
    bars = tab.turns().locator(".bar-text").all_inner_texts()
    cached = [int(text.split()[0]) for text in bars]
    assert cached[0] < 10 < cached[1] < cached[2]
    assert "first token" in tab.turns().nth(2).locator(".figures").inner_text()
    assert tab.pane().get_by_role("meter", name="Context").get_attribute("aria-valuenow") == "95"

    tab.act("Fork after turn 2")
    tab.turns(1).nth(1).wait_for()
    assert tab.ask("Which shape is yellow?", pane=1) == "triangle"
    shoot(tab, "chat-light")
    tab.page.locator("#theme button").click()
    shoot(tab, "chat-dark")
    tab.page.set_viewport_size({"width": 390, "height": 844})
    shoot(tab, "phone-dark")
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
    assert not tab.sessions().first.is_visible()
    tab.page.get_by_role("button", name="Sessions", exact=True).click()
    tab.sessions().nth(1).wait_for()
    shoot(tab, "drawer")
    tab.page.keyboard.press("Escape")
    tab.sessions().first.wait_for(state="hidden")
    tab.page.set_viewport_size({"width": 1280, "height": 800})

    tab.act("Rewind to turn 1")
    tab.turns().nth(1).wait_for(state="detached")
    assert tab.pane().locator("textarea").input_value() == "What color is the circle?"
    assert tab.replies(1) == ["three", "red", "triangle"]
    assert tab.ask("And the square?") == "blue"
    assert tab.sessions().count() == 2


def test_an_old_update_that_comes_last_is_not_shown(tab: WebPage) -> None:
    """A slow browser may take the updates of two handlers in another order than they were made."""
    old = list[str]()

    def exchange(route: Route) -> None:
        answer = route.fetch()
        body = ""
        for message in answer.text().split("\n\n"):
            body += f"{message}\n\n"
            document = json.loads(message[5:]) if message else {}
            if document.get("msg") != "process_generating":
                continue
            data = document["output"]["data"]
            if "scene.png" in str(data):
                late = [
                    f"{data[2]}<i class='late'>late</i>" if at == 2 else value
                    for at, value in enumerate(old)
                ]
                document["output"]["data"] = [[["replace", [], value]] for value in late]
                body += f"data: {json.dumps(document)}\n\n"
            elif not old and "connected" in str(data):
                old.extend(data)
        route.fulfill(response=answer, body=body)

    tab.page.route("**/queue/data?*", exchange)
    tab.page.reload()
    tab.page.locator(".status.up").wait_for()
    tab.upload(SCENE)
    tab.page.locator("#status .late").wait_for()
    assert tab.page.locator("ul.waiting li").is_visible()


def test_a_reload_shows_the_sessions_again(tab: WebPage) -> None:
    """The browser remembers its sessions and their questions, another tab is independent, and closed ones are marked.

    It remembers light or dark, too.
    """
    tab.upload(SCENE)
    tab.ask("How many shapes are there?")
    tab.page.locator("#theme button").click()
    tab.page.reload()
    # Until the page has read the reply it shows the question alone.
    tab.turns().locator(".reply", has_text="three").wait_for()
    assert tab.replies() == ["three"]
    assert tab.page.locator("body.dark").is_visible()
    assert tab.ask("And the square?") == "blue"

    other = WebPage(tab.page.context.new_page())
    other.page.goto(tab.page.url)
    other.sessions().first.wait_for()
    assert other.turns().count() == 0
    other.upload(SCENE)
    assert other.ask("What color is the circle?") == "red"
    tab.sessions().nth(1).wait_for()  # the list is the browser's
    assert tab.replies() == ["three", "blue"]
    tab.sessions().filter(has_text="What color").get_by_role("button", name="Close").click()
    tab.sessions().nth(1).wait_for(state="detached")
    other.type("And the square?")
    other.pane().locator(".error", has_text="session_closed").wait_for()
    assert other.pane().locator("textarea").input_value() == "And the square?"
    other.sessions().locator(".badge", has_text="closed").wait_for()


def test_two_tabs_show_one_session(tab: WebPage) -> None:
    """Neither loses a question of the other, and what one has saved is not saved again by the other.

    One that comes too late is put back, beside the turns that came before it, and can be asked again.
    """
    tab.ask("What color is the circle?")
    other = WebPage(tab.page.context.new_page())
    other.page.goto(tab.page.url)
    other.page.evaluate("window.numSaved = 0; addEventListener('storage', () => numSaved++)")
    tab.page.evaluate("window.numSaved = 0; addEventListener('storage', () => numSaved++)")
    other.sessions().locator(".title").click()
    other.turns().locator(".figures").wait_for()
    tab.ask("And the square?")
    other.sessions().filter(has_text="2 turns").wait_for()
    other.ask("How many shapes are there?")
    tab.sessions().filter(has_text="3 turns").wait_for()
    other.page.reload()
    other.turns().nth(2).wait_for()
    assert other.turns().locator(".prompt p").all_inner_texts() == [
        "What color is the circle?",
        "And the square?",
        "How many shapes are there?",
    ]
    assert tab.page.evaluate("numSaved") < 10

    tab.type("Which shape is yellow?")  # the page does not know of the third turn
    tab.pane().locator(".error", has_text="turn_gap").wait_for()
    tab.turns().nth(2).wait_for()
    tab.pane().locator("textarea").press("Enter")
    tab.turns().nth(3).wait_for()


def test_a_full_store_loses_its_oldest_sessions(tab: WebPage) -> None:
    """The session on the page is kept, and is there after a reload."""
    tab.page.evaluate(_FILL)
    tab.ask("What color is the circle?")
    tab.page.reload()
    tab.turns().locator(".figures").wait_for()
    assert tab.turns().locator(".prompt p").all_inner_texts() == ["What color is the circle?"]


def test_only_files_are_taken_from_drops_and_pastes(tab: WebPage) -> None:
    """Text stays text, also where a program has added a picture of it."""
    assert tab.page.evaluate(_TEXTS) == [False, False, False]
    tab.page.get_by_label("URL of a file").fill("https://[::1/cat.png")
    tab.page.get_by_role("button", name="Add", exact=True).click()
    tab.page.locator("#files .error", has_text="names no file").wait_for()


def test_what_others_write_is_text(tab: WebPage, tmp_path: Path) -> None:
    """Neither a question nor a file's name becomes a tag; an error of the server is shown with its field.

    A question that failed comes back before what was typed meanwhile.
    """
    picture = tmp_path / "<b>&lt;b&gt;.png"
    shutil.copy(SCENE, picture)
    tab.upload(picture)
    name = tab.page.locator("ul.waiting img").get_attribute("alt")
    assert name is not None
    assert "&lt;b&gt;.png" in name
    tab.ask(HOSTILE)
    assert tab.turns().locator(".prompt p").inner_text() == HOSTILE
    assert tab.pane().locator("h2").inner_text().startswith("<img src=")
    assert tab.page.locator(".pane script, .pane b, .pane img:not(.thumbs img)").count() == 0

    tab.page.get_by_label("URL of a file").fill("data:image/png;base64,AAAA")
    tab.page.get_by_role("button", name="Add", exact=True).click()
    tab.page.locator("ul.waiting .link").wait_for()

    def hold(_: Route) -> None:
        """Answer later."""

    # The error comes after what is typed.
    tab.page.route("**/queue/join*", hold)
    with tab.page.expect_request("**/queue/join*"):
        tab.type("And the square?")
    tab.pane().locator("textarea").press_sequentially("And now?")
    tab.page.unroute("**/queue/join*", hold)  # which lets them go
    error = tab.pane().locator(".error")
    error.wait_for()
    assert error.locator("b").inner_text() == "media_invalid"
    assert error.locator("code").inner_text() == "images[0].url"
    assert tab.pane().locator("textarea").input_value() == "And the square?\n\nAnd now?"


def test_escape_stops_a_reply(browser: Browser, served: Served) -> None:
    """The text until then stays in the session; a page that is loaded in mid-reply goes on with it."""
    options = ("--ignore-eos", "--max-new-tokens", str(WINDOW), "--image", str(SCENE))
    with (
        chat_page(served.server.http_url, *options, name="web-endless") as url,
        opened(browser, url) as tab,
    ):
        tab.type("What color is the circle?")
        tab.pane().locator(".live .reply", has_text="red").wait_for()
        tab.page.reload()
        tab.pane().locator(".live .reply", has_text="red").wait_for()
        tab.page.keyboard.press("Escape")
        tab.turns().first.wait_for()
        assert tab.turns().locator(".badge").inner_text() == "cancelled"
        assert "tokens/s" in tab.turns().locator(".figures").inner_text()
        assert tab.replies()[0].startswith("red")
        assert tab.pane().get_by_role("button", name="Send").is_visible()
        assert not tab.pane().get_by_role("button", name="Stop").is_visible()

        tab.act("Fork after turn 1")
        tab.turns(1).first.wait_for()
        tab.type("And the square?", pane=1)
        tab.pane(1).get_by_role("button", name="Stop").wait_for()
        tab.page.get_by_label("URL of a file").press("Escape")
        tab.turns(1).nth(1).wait_for()


def test_odd_replies_are_read_and_heard(browser: Browser) -> None:
    """A wide table scrolls by itself, a screen reader gets each reply once, and paper all of them. The end is in sight."""
    wide = "| long words " * 30 + "|\n" + "|---" * 30 + "|"
    fake = FakeSessions(texts=deque(["one two", f"{wide}\n\nend"]))
    with (
        grpc_server(fake) as port,
        chat_page(f"grpc://127.0.0.1:{port}", name="web-odd") as url,
        opened(browser, url) as tab,
    ):
        tab.page.evaluate(_HEARD)
        tab.page.set_viewport_size({"width": 1280, "height": 300})
        for question in ("a", "b"):
            tab.ask(question)
            tab.page.wait_for_function("number => heard.length == number", arg=len(tab.replies()))
        tab.page.wait_for_function("document.querySelector('.scroller').scrollTop > 0")
        first, second = tab.page.evaluate("heard")
        assert first == "one two"
        assert second.endswith("end")
        tab.page.set_viewport_size({"width": 360, "height": 740})
        cell = tab.page.locator("th").first.bounding_box()
        table = tab.page.locator(".reply table").bounding_box()
        assert cell is not None
        assert table is not None
        assert cell["width"] > 40
        assert table["width"] < 360
        tab.page.set_viewport_size({"width": 1280, "height": 300})
        tab.page.emulate_media(media="print")
        assert not tab.pane().locator("textarea").is_visible()
        assert tab.page.locator(".scroller").first.evaluate("e => e.scrollHeight == e.clientHeight")


def test_a_restart_is_a_pause(tab: WebPage, served: Served) -> None:
    """A killed server is a state; a question that is asked meanwhile is answered when it is back, in its session."""
    tab.upload(SCENE)
    tab.ask("How many shapes are there?")
    served.kill()
    tab.page.locator(".status.down").wait_for()
    tab.type("What color is the circle?")
    tab.pane().locator(".waits").wait_for()
    shoot(tab, "down")
    served.start()
    tab.turns().nth(1).wait_for()
    assert tab.replies() == ["three", "red"]
    tab.page.locator(".status.up").wait_for()
    assert tab.page.locator(".error").count() == 0
