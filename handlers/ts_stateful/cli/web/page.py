"""The chat page: its events beside those of the panes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import gradio as gr
import msgspec

from ts_stateful.cli.chat.loop import ChatOptions
from ts_stateful.cli.web.layout import Parts, lay_out
from ts_stateful.cli.web.saved import SavedTurn
from ts_stateful.cli.web.tab import Failures
from ts_stateful.cli.web.tabs import BrowserTabs
from ts_stateful.cli.web.view import PageView, Update
from ts_stateful.client import PromptOptions

__all__ = ["ChatPage"]

Handler = Callable[..., Iterator[Update]]


class ChatPage:
    """One page for all tabs of all browsers. Gradio finds the request and the event by the annotations."""

    def __init__(self, tabs: BrowserTabs, view: PageView, options: ChatOptions) -> None:
        self._tabs = tabs
        self._view = view
        self._options = options

    def build(self, prefix: str) -> gr.Blocks:
        """Make the components and connect their events. `prefix` is that of the browser's keys."""
        blocks = gr.Blocks(title="torchserve-stateful", analytics_enabled=False)
        with blocks:
            self._connect(lay_out(prefix, self._options))
            blocks.unload(self._tabs.forget)
        blocks.queue(default_concurrency_limit=None)
        return blocks

    def _connect(self, parts: Parts) -> None:
        on = partial(self._on, outputs=parts.outputs)
        on(parts.keeper.restored, self._restored)
        on(parts.keeper.changed, self._changed)
        on(parts.timer.tick, self._tick)
        on(parts.files.act, self._files_act)
        on(parts.sessions.act, self._sessions_act)
        on(parts.new.click, self._new)
        for number, pane in enumerate(parts.panes):
            events = _PaneEvents(number, self._tabs, self._view, self._options.prompt)
            for asked in (pane.box.submit, pane.send.click):
                on(asked, events.ask, inputs=[pane.box, *parts.settings.inputs])
            on(pane.stop.click, events.stop)
            on(pane.head.act, events.act)
            on(pane.turns.act, events.act)

    def _on(self, event: Callable[..., Any], handler: Handler, **wiring: Any) -> None:
        @wraps(handler)
        def updates(*args: Any) -> Iterator[Update]:
            yield from handler(*args)
            # At the end Gradio sends the last update again, when others may have been sent after it.
            yield self._view.nothing()

        event(
            updates,
            **wiring,
            show_progress="hidden",
            api_visibility="private",
            trigger_mode="multiple",
        )

    def _restored(self, event: gr.EventData, request: gr.Request) -> Iterator[Update]:
        tab = self._tabs.of(request)
        tab.recall(event.entries, event.shown)
        prompt = tab.ask_again(msgspec.convert(event.pending, list[SavedTurn]))
        yield self._view.all(tab, {0: {"back": prompt}} if prompt else None)
        if self._view.watch.is_up:
            tab.read()
            yield self._view.all(tab)
            tab.check()
            yield self._view.all(tab)
        yield from self._view.follow(tab)

    def _changed(self, event: gr.EventData, request: gr.Request) -> Iterator[Update]:
        tab = self._tabs.of(request)
        tab.recall(event.entries)
        yield self._view.all(tab)

    def _tick(self, request: gr.Request) -> Iterator[Update]:
        tab, status = self._tabs.of(request), self._view.status()
        if tab.status == status:
            return
        tab.status = status
        yield self._view.all(tab)
        if self._view.watch.is_up and not all(one.is_read for one in tab.panes):
            tab.read()
            yield self._view.all(tab)
            yield from self._view.follow(tab)

    def _files_act(self, event: gr.EventData, request: gr.Request) -> Iterator[Update]:
        tab = self._tabs.of(request)
        tab.notice = None
        try:
            if event.do == "add":
                for source in event.sources:
                    tab.add(str(source).strip())
            elif event.do == "remove":
                tab.remove(str(event.source))
        except Failures as error:
            tab.notice = error
        yield self._view.all(tab)

    def _sessions_act(self, event: gr.EventData, request: gr.Request) -> Iterator[Update]:
        tab = self._tabs.of(request)
        tab.notice = None
        try:
            if event.do == "end":
                tab.end(str(event.id))
            else:
                tab.show(str(event.id), 1 if event.do == "beside" else 0)
        except Failures as error:
            tab.notice = error
        tab.read()
        yield self._view.all(tab)
        yield from self._view.follow(tab)

    def _new(self, request: gr.Request) -> Iterator[Update]:
        tab = self._tabs.of(request)
        tab.begin()
        yield self._view.all(tab)


class _PaneEvents:
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
