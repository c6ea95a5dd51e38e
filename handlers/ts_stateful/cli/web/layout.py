"""The components of the page, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from ts_stateful.cli.chat.loop import ChatOptions

__all__ = ["PANES", "PaneParts", "Parts", "Settings", "head_script", "lay_out", "style", "theme"]

PANES = 2
_MAX_NEW_TOKENS = 256
_ASSETS = Path(__file__).parent / "assets"
_NEWEST = "${chatPage.newest(name, value)}"
_STATES = "chatPage.states(props, watch)"
_ACTS = "chatPage.acts(element, (act) => trigger('act', act))"
_PICTURES = "chatPage.pictures(element, upload, (act) => trigger('act', act))"
_KEEPER = (
    "chatPage.keep(element, props, watch,"
    " (kept) => trigger('restored', kept), (kept) => trigger('changed', kept))"
)
_KEYS = "Enter sends, Shift+Enter begins a line, Esc stops the reply"
_ADDER = """\
<label class="drop"><input type="file" multiple accept="image/*,.wav,.flac" aria-label="Choose files">
<span><b>Drop</b>, paste or <u>choose</u> files</span></label>
<form class="url"><input type="text" aria-label="URL of a file" placeholder="or a URL"><button type="submit">Add</button></form>
<div>${chatPage.newest(name, value)}</div>"""


@dataclass(frozen=True)
class PaneParts:
    """The components of one conversation."""

    head: gr.HTML
    turns: gr.HTML
    live: gr.HTML
    box: gr.Textbox
    change: gr.HTML
    send: gr.Button
    stop: gr.Button


@dataclass(frozen=True)
class Settings:
    """The components of what counts for all questions."""

    system: gr.Textbox
    max_new_tokens: gr.Number
    temperature: gr.Slider

    @property
    def inputs(self) -> list[gr.Component]:
        """Return them in the order of the fields."""
        return [self.system, self.max_new_tokens, self.temperature]


@dataclass(frozen=True)
class Parts:
    """All components that events read or write.

    Outputs take values alone: those of an update are shown together, while Gradio changes other properties later.
    """

    states: gr.HTML
    keeper: gr.HTML
    status: gr.HTML
    files: gr.HTML
    new: gr.Button
    sessions: gr.HTML
    settings: Settings
    panes: tuple[PaneParts, ...]
    timer: gr.Timer

    @property
    def outputs(self) -> list[gr.Component]:
        """Return the outputs of every event, in the order of updates."""
        outputs: list[gr.Component] = [
            self.states,
            self.keeper,
            self.status,
            self.files,
            self.sessions,
        ]
        for pane in self.panes:
            outputs += [pane.head, pane.turns, pane.live, pane.change]
        return outputs


def style() -> str:
    """Return the style sheet of the page."""
    return (_ASSETS / "page.css").read_text(encoding="utf-8")


def head_script() -> str:
    """Return the script of the page, for its head."""
    return f"<script>{(_ASSETS / 'page.js').read_text(encoding='utf-8')}</script>"


def theme() -> gr.themes.Base:
    """Return a theme with the fonts of the system: others would come from another host."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.indigo,
        neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    )


def lay_out(prefix: str, options: ChatOptions) -> Parts:
    """Make the components, inside a `gr.Blocks`. `prefix` is that of the browser's keys."""
    states = _output("states", html_template="", js_on_load=_STATES, visible="hidden")
    keeper = _output(
        "keeper", html_template="", js_on_load=_KEEPER, visible="hidden", prefix=prefix
    )
    with gr.Row(elem_id="top", equal_height=True):
        _html(
            "<h1><span>torchserve-</span><b>stateful</b></h1>"
            '<button type="button" class="act" data-do="drawer">Sessions</button>',
            js_on_load=_ACTS,
            elem_id="brand",
        )
        status = _output("status", js_on_load=None, elem_id="status")
        _html(
            '<button type="button" class="act" data-do="theme" aria-label="Light or dark" title="Light or dark">'
            "&#9680;</button>",
            js_on_load=_ACTS,
            elem_id="theme",
        )
    with gr.Row(elem_id="page"):
        with gr.Column(elem_id="aside", scale=0, min_width=300):
            files = _output("files", html_template=_ADDER, js_on_load=_PICTURES, elem_id="files")
            with gr.Column(elem_id="drawer"):
                new = gr.Button("New session", elem_id="new", size="sm")
                sessions = _output("sessions", js_on_load=_ACTS, elem_id="sessions")
                settings = _settings(options)
        panes = tuple(_pane(number) for number in range(PANES))
    return Parts(states, keeper, status, files, new, sessions, settings, panes, gr.Timer(1.0))


def _html(value: str, **options: Any) -> gr.HTML:
    return gr.HTML(value, apply_default_css=False, **options)


def _output(name: str, *, html_template: str = _NEWEST, **options: Any) -> gr.HTML:
    """Make a part of the page whose values begin with the numbers of their updates; the script shows the newest."""
    return _html("0 ", name=name, html_template=html_template, **options)


def _settings(options: ChatOptions) -> Settings:
    given = options.prompt
    with gr.Accordion("Settings", open=False, elem_id="settings"):
        return Settings(
            gr.Textbox(options.system or "", label="System prompt of new sessions", lines=2),
            gr.Number(
                given.get("max_new_tokens", _MAX_NEW_TOKENS),
                label="Longest reply, in tokens",
                precision=0,
                minimum=1,
            ),
            gr.Slider(
                0,
                2,
                given.get("temperature", 0.0),
                step=0.1,
                label="Temperature (0: the likeliest tokens)",
            ),
        )


def _pane(number: int) -> PaneParts:
    with gr.Column(elem_id=f"pane-{number}", elem_classes="pane", min_width=280):
        head = _output(f"head-{number}", js_on_load=_ACTS, elem_classes="head")
        with gr.Column(elem_classes="scroller"):
            turns = _output(f"turns-{number}", js_on_load=_ACTS, elem_classes="turns")
            live = _output(f"live-{number}", js_on_load=None, elem_classes="live-part")
        with gr.Row(elem_classes="composer"):
            box = gr.Textbox(
                label=f"Question {number + 1}" if number else "Question",
                placeholder="Ask something",
                show_label=False,
                container=False,
                lines=1,
                max_lines=8,
                scale=1,
                elem_classes="box",
                autofocus=number == 0,
            )
            send = gr.Button("Send", variant="primary", elem_classes="send", scale=0, min_width=84)
            stop = gr.Button("Stop", variant="stop", elem_classes="stop", scale=0, min_width=84)
        change = _output(
            f"box-{number}",
            html_template="",
            js_on_load=f"chatPage.box(props, watch, {number})",
            visible="hidden",
        )
        _html(_KEYS, js_on_load=None, elem_classes="keys")
    return PaneParts(head, turns, live, box, change, send, stop)
