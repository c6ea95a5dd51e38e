"""The updates of the components that show a tab."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr

from ts_stateful.cli.web.conversation import Conversation
from ts_stateful.cli.web.layout import PANES
from ts_stateful.cli.web.markup import (
    error_html,
    files_html,
    head_html,
    live_html,
    sessions_html,
    status_html,
    turns_html,
)
from ts_stateful.cli.web.server_watch import ServerWatch
from ts_stateful.cli.web.tab import BrowserTab

__all__ = ["PageView", "Update"]

_TICK_S = 0.08  # between two updates of a reply in progress
_TICK_S_PER_CHAR = 1e-5  # more, since each update draws the whole reply
_BEFORE_PANES, _PER_PANE = 5, 4  # outputs
_NO_FILES = '<i class="none"></i>'
Update = list[Any]
"""The values of all outputs, see `Parts.outputs`.

Gradio may show the updates of two handlers in another order than they were made, so those of HTML begin with a number.
"""


class PageView:
    """Makes updates of all outputs, for a server at `url`."""

    def __init__(self, watch: ServerWatch, url: str) -> None:
        self.watch = watch
        self._url = url
        self._numbers = itertools.count(1)  # of all tabs: one that was forgotten may come back

    def status(self) -> str:
        """Return the state of the server."""
        watch = self.watch
        model = "" if watch.hello is None else watch.hello.model
        return status_html(model, self._url, watch.problem, watch.refusal)

    def all(self, tab: BrowserTab, boxes: Mapping[int, Mapping[str, str]] | None = None) -> Update:
        """Return an update of everything; `boxes` has what changes in boxes for questions, see `chatPage.box`."""
        number = next(self._numbers)  # first: the highest one shows the latest state
        panes = tab.panes  # other threads replace them
        update: Update = [
            json.dumps(["live" if one.live else "still" for one in panes]),
            tab.to_keep(),
            self.status(),
            self._files(tab),
            sessions_html(tab.sessions, tab.shown),
        ]
        for index in range(PANES):
            update += self._pane(panes, index, (boxes or {}).get(index))
            # Long conversations are not sent again as they are.
            if index < len(panes) and tab.is_drawn(index, panes[index].exchanges, number):
                update[1 - _PER_PANE] = gr.skip()
        return _numbered(number, update)

    def nothing(self) -> Update:
        """Return an update that changes nothing. Gradio empties the outputs of a handler that yields none."""
        return [gr.skip()] * (_BEFORE_PANES + _PER_PANE * PANES)

    def follow(self, tab: BrowserTab, number: int | None = None) -> Iterator[Update]:
        """Yield updates until the replies in progress have ended: those of all panes, or of one."""
        panes = [one for index, one in enumerate(tab.panes) if number in (None, index)]
        running = [one for one in panes if one.live is not None]
        shown, num_sessions = "", -1
        while running:
            tick_s = _TICK_S + _TICK_S_PER_CHAR * len(shown)
            for one in list(running):
                live = one.live
                if live is not None and not live.wait(tick_s / len(running)):
                    continue
                running.remove(one)
                prompt = tab.finish(one)
                tab.read()  # after a turn of another client
                running += [one] if one.live is not None else []
                places = [index for index, pane in enumerate(tab.panes) if pane is one]
                back = {index: {"back": prompt} for index in places if prompt}
                yield self.all(tab, back)
            now = "".join(live_html(one, self.watch.problem) for one in running)
            if now != shown:
                shown = now
                before, num_sessions = num_sessions, len(tab.sessions)
                is_opened = before != num_sessions
                yield self.all(tab) if is_opened else self._live(tab)

    def _files(self, tab: BrowserTab) -> str:
        hello = self.watch.hello
        if hello is not None and not hello.limits.images and not hello.limits.audio:
            return _NO_FILES
        sent = [
            source for one in tab.panes for turn in one.exchanges.values() for source in turn.files
        ]
        notice = "" if tab.notice is None else error_html(tab.notice)
        return notice + files_html(tab.waiting, sent)

    def _pane(
        self, panes: Sequence[Conversation], number: int, box: Mapping[str, str] | None
    ) -> Update:
        if number >= len(panes):
            return [gr.skip()] * _PER_PANE
        pane, hello = panes[number], self.watch.hello
        context_tokens = None if hello is None else hello.limits.context_tokens
        return [
            head_html(pane, context_tokens, is_side=number > 0),
            turns_html(pane.exchanges),
            live_html(pane, self.watch.problem),
            gr.skip() if box is None else json.dumps(box),
        ]

    def _live(self, tab: BrowserTab) -> Update:
        """Return an update of only what a reply in progress changes."""
        number = next(self._numbers)
        panes = tab.panes
        update = [gr.skip()] * _BEFORE_PANES
        for index in range(PANES):
            is_shown = index < len(panes)
            live = live_html(panes[index], self.watch.problem) if is_shown else gr.skip()
            update += [gr.skip(), gr.skip(), live, gr.skip()]
        return _numbered(number, update)


def _numbered(number: int, update: Update) -> Update:
    return [f"{number} {value}" if isinstance(value, str) else value for value in update]
