"""The chat page of `ts-stateful chat --web`, in a real Chromium without a window."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.e2e.server import ROOT, log_path
from tests.support.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Locator, Page, Request

__all__ = ["SCENE", "WebPage", "chat_page", "launch_options", "opened"]

SCENE = ROOT / "examples" / "shapes" / "scene.png"
WAIT_MS = 90_000  # for what a busy machine may take; nothing is waited for longer than it takes
_STOP_S = 60
# As root and without a screen. The others keep Chromium from asking other hosts by itself.
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_LOCAL = ("http://127.0.0.1:", "data:", "blob:")


def launch_options(executable: str) -> dict[str, object]:
    """Return the options of the browser's start."""
    return {"executable_path": executable, "args": _FLAGS}


@contextlib.contextmanager
def chat_page(url: str, *options: str, name: str = "web-page") -> Iterator[str]:
    """Run `ts-stateful chat --web` for the server at `url`; yield the URL of the page."""
    port = free_port()
    command = [sys.executable, "-m", "ts_stateful.cli", "chat", "--web", "--web-port", str(port)]
    log = log_path(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, "--url", url, *options], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert lines == [f"chat  http://127.0.0.1:{port}\n", "ready\n"], log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            finally:
                process.kill()
    assert "Traceback" not in (text := log.read_text()), text


class WebPage:
    """A tab of a browser with the chat page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def pane(self, number: int = 0) -> Locator:
        """Return one of the conversations side by side."""
        return self.page.locator(f"#pane-{number}")

    def turns(self, pane: int = 0) -> Locator:
        """Return the committed turns of a pane."""
        return self.pane(pane).locator(".turns article")

    def replies(self, pane: int = 0) -> list[str]:
        """Return the texts of the committed replies."""
        return [text.strip() for text in self.turns(pane).locator(".reply").all_inner_texts()]

    def upload(self, *files: object) -> None:
        """Choose files, and wait until they are shown."""
        self.page.locator("input[type=file]").set_input_files(list(files))  # type: ignore[arg-type]
        self.page.locator("ul.waiting li").nth(len(files) - 1).wait_for()

    def type(self, question: str, pane: int = 0) -> None:
        """Send a question with Enter."""
        box = self.pane(pane).locator("textarea")
        box.fill(question)
        box.press("Enter")

    def ask(self, question: str, pane: int = 0) -> str:
        """Send a question, wait for the end of its turn, and return the reply."""
        before = self.turns(pane).count()
        self.type(question, pane)
        self.turns(pane).nth(before).wait_for()
        return self.replies(pane)[-1]

    def act(self, name: str, pane: int = 0) -> None:
        """Click on a button by its accessible name."""
        self.pane(pane).get_by_role("button", name=name, exact=True).click()

    def sessions(self) -> Locator:
        """Return the sessions of the browser, as the page lists them."""
        return self.page.locator("ul.sessions li")


@contextlib.contextmanager
def opened(browser: Browser, url: str) -> Iterator[WebPage]:
    """Open the page in a browser without a history; fail on a request to another host, and on an error of the page's script."""
    faults: list[str] = []

    def look(request: Request) -> None:
        if not request.url.startswith(_LOCAL):
            faults.append(request.url)

    def dismiss(dialog: Dialog) -> None:
        faults.append(dialog.message)
        dialog.dismiss()

    with contextlib.closing(browser.new_context(viewport={"width": 1280, "height": 800})) as tabs:
        tabs.set_default_timeout(WAIT_MS)
        tabs.on("request", look)
        tabs.on("weberror", lambda error: faults.append(str(error.error)))
        tabs.on("dialog", dismiss)
        page = tabs.new_page()
        page.goto(url)
        page.locator(".status.up").wait_for()
        try:
            yield WebPage(page)
        except BaseException:
            page.screenshot(path=log_path("web").with_suffix(".png"))
            raise
    assert not faults
