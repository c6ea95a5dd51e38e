"""The events of one pane: questions, forks, rewinds and cancellations."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr

from ts_stateful.cli.web.tab import Failures
from ts_stateful.cli.web.tabs import BrowserTabs
from ts_stateful.cli.web.view import PageView, Update
from ts_stateful.client import PromptOptions

__all__ = ["PaneEvents"]


class PaneEvents:
    """The events of pane `number`. Gradio finds the request and the event by the annotations."""

    def __init__(
        self, number: int, tabs: BrowserTabs, view: PageView, options: PromptOptions
    ) -> None:
        self._number = number
        self._tabs = tabs
        self._view = view
        self._options = options

    def ask(
        self,
        prompt: str,
        system: str,
        max_new_tokens: int | None,
        temperature: float,
        request: gr.Request,
    ) -> Iterator[Update]:
        """Begin a turn, and show its reply while it comes."""
        tab = self._tabs.of(request)
        options = PromptOptions(**self._options)
        options["temperature"] = temperature
        if max_new_tokens:
            options["max_new_tokens"] = max_new_tokens
        if tab.ask(self._number, prompt, options, system.strip() or None) is None:
            return
        yield self._view.all(tab, {self._number: {"sent": prompt}})
        yield from self._view.follow(tab, self._number)

    def stop(self, request: gr.Request) -> Iterator[Update]:
        """Cancel the reply in progress."""
        tab = self._tabs.of(request)
        try:
            tab.panes[self._number].cancel()
        except Failures as error:
            tab.notice = error
        yield self._view.all(tab)

    def act(self, event: gr.EventData, request: gr.Request) -> Iterator[Update]:
        """Fork, rewind, or close the pane."""
        tab = self._tabs.of(request)
        pane = tab.panes[self._number]
        boxes = {}
        try:
            if event.do == "fork":
                tab.fork(self._number, int(event.turn))
            elif event.do == "rewind":
                boxes[self._number] = {"back": pane.rewind(int(event.turn))}
            elif event.do == "leave":
                tab.leave()
        except Failures as error:
            pane.failed(error)
        yield self._view.all(tab, boxes)
