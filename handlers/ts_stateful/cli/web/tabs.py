"""The tabs of all browsers, each with a state of its own."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from ts_stateful.cli.chat.loop import ChatOptions
from ts_stateful.cli.web.server_watch import ServerWatch
from ts_stateful.cli.web.tab import BrowserTab, Failures
from ts_stateful.client import Server

__all__ = ["BrowserTabs"]


class BrowserTabs:
    """Tabs by Gradio's names of them. `uploads` is the folder into which they upload."""

    def __init__(
        self, server: Server, watch: ServerWatch, options: ChatOptions, uploads: Path
    ) -> None:
        self._server = server
        self._watch = watch
        self._options = options
        self._uploads = uploads.resolve()
        self._tabs: dict[str, BrowserTab] = {}

    def of(self, request: gr.Request) -> BrowserTab:
        """Return the tab of a request; its first request makes it."""
        name = str(request.session_hash)
        tab = self._tabs.get(name)
        if tab is None:  # of two at the same time, both get the first one's
            new = BrowserTab(self._server, self._options, self._uploads)
            tab = self._tabs.setdefault(name, new)
        if self._watch.hello is not None:
            try:
                tab.meet(self._watch.hello.limits)
            except Failures as error:
                tab.notice = error
        return tab

    def forget(self, request: gr.Request) -> None:
        """Drop the tab that was closed. Its sessions stay open, and its replies go on."""
        self._tabs.pop(str(request.session_hash), None)
