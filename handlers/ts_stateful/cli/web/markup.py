"""HTML of the page's parts. Every text of a user, a model, a server or a file's name is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from html import escape
from pathlib import Path
from urllib.parse import quote, urlsplit

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from ts_stateful.cli.chat.files import is_url
from ts_stateful.cli.chat.reply_parser import reply_parser
from ts_stateful.cli.chat.talk import Exchange
from ts_stateful.cli.chat.words import counted
from ts_stateful.cli.web.conversation import Conversation
from ts_stateful.cli.web.saved import SavedSession, is_clip
from ts_stateful.client import ServerUnreachable
from ts_stateful.protocol.answers import Timing, Usage
from ts_stateful.protocol.errors import StatefulError

__all__ = [
    "error_html",
    "file_html",
    "files_html",
    "head_html",
    "live_html",
    "reply_html",
    "sessions_html",
    "status_html",
    "turns_html",
]

_DIRECTED = {"ul", "ol", "blockquote", "table"}
_ENDED = {
    "expired": "This session has expired. The next question begins another.",
    "closed": "This session was closed. The next question begins another.",
    "unknown": "The server does not know this session. The next question begins another.",
}
_EMPTY = (
    '<div class="empty"><b>Ask about a picture</b><span>The session keeps it: later questions compute only'
    " what is new.</span></div>"
)


def _link_open(
    self: RendererHTML, tokens: list[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Show the address: a model may name one and mean another. No opened page learns of this one."""
    token = tokens[index]
    token.attrSet("target", "_blank")
    token.attrSet("rel", "noopener noreferrer")
    token.attrSet("title", str(token.attrGet("href")))
    return self.renderToken(tokens, index, options, env)


_MARKDOWN = reply_parser()
_MARKDOWN.options["breaks"] = True
_MARKDOWN.add_render_rule("link_open", _link_open)


def reply_html(text: str) -> str:
    """Render Markdown. Nothing that a model writes becomes a tag, a script or a request to another host: HTML is shown as text.

    Each list, quotation and table has the direction of its text.
    """
    tokens = _MARKDOWN.parse(text)
    for token in tokens:
        if token.tag in _DIRECTED and token.nesting == 1:
            token.attrSet("dir", "auto")
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


_committed_html = lru_cache(maxsize=4096)(reply_html)


def button(do: str, label: str, text: str, **data: object) -> str:
    """Return a button whose click is the act `do` with `data`; `label` is its meaning in words."""
    named = "".join(f' data-{name}="{escape(str(value))}"' for name, value in data.items())
    return (
        f'<button type="button" class="act" data-do="{do}"{named} title="{escape(label)}"'
        f' aria-label="{escape(label)}">{text}</button>'
    )


def file_html(source: str) -> str:
    """Show an image, a clip, or the address of one. The browser fetches nothing from another host."""
    if is_url(source):
        try:
            parts = urlsplit(source)
            name = f"{parts.netloc}{parts.path}" if parts.netloc else source[:40]
        except ValueError:  # kept by the browser, or given by a client
            name = source
        return f'<span class="link" title="{escape(source[:500])}">{escape(name[:60])}</span>'
    name = Path(source).name
    if not Path(source).is_file():  # an upload to an earlier run of the page
        return f'<span class="link">{escape(name[:60])}</span>'
    url = f"gradio_api/file={quote(source)}"
    if is_clip(source):
        player = f'<audio controls preload="metadata" src="{url}"></audio>'
        return f"<figure>{player}<figcaption>{escape(name)}</figcaption></figure>"
    return f'<img src="{url}" alt="{escape(name)}" title="{escape(name)}">'


def files_html(waiting: Iterable[str], sent: Iterable[str]) -> str:
    """Show the files that go with the next question, and those of the conversation."""
    parts = [
        f"<li>{file_html(source)}{button('remove', f'Remove {Path(source).name[:60]}', '&times;', source=source)}</li>"
        for source in waiting
    ]
    html = (
        f'<ul class="files waiting" aria-label="Sent with the next question">{"".join(parts)}</ul>'
    )
    shown = "".join(f"<li>{file_html(source)}</li>" for source in dict.fromkeys(sent))
    return f'{html}<ul class="files sent" aria-label="In this conversation">{shown}</ul>'


def turns_html(exchanges: Mapping[int, Exchange]) -> str:
    """Show committed turns, each with its figures and its acts."""
    if not exchanges:
        return ""
    last = max(exchanges)
    return "".join(_turn(number, one, last) for number, one in sorted(exchanges.items()))


def _turn(number: int, one: Exchange, last: int) -> str:
    acts = [button("fork", f"Fork after turn {number}", "Fork", turn=number)]
    if number < last:
        acts.append(button("rewind", f"Rewind to turn {number}", "Rewind to here", turn=number))
    else:
        acts.append(button("rewind", f"Undo turn {number}", "Undo", turn=number - 1))
    ending = "" if one.finish_reason in (None, "stop") else _badge(str(one.finish_reason))
    return (
        f'<article class="turn" aria-label="Turn {number}">{_prompt(one.prompt, one.files)}'
        f'<div class="reply">{_committed_html(one.reply)}</div>'
        f'<footer>{_bar(one.usage)}<span class="figures">{" &middot; ".join(_figures(one))}</span>{ending}'
        f'<span class="acts">{"".join(acts)}</span></footer></article>'
    )


def _prompt(prompt: str, files: Iterable[str]) -> str:
    shown = "".join(file_html(source) for source in files)
    shown = f'<div class="thumbs">{shown}</div>' if shown else ""
    text = escape(prompt) if prompt else "<em>asked elsewhere</em>"
    return f'<div class="prompt">{shown}<p>{text}</p></div>'


def _bar(usage: Usage | None) -> str:
    if usage is None or not usage.prompt_tokens:
        return ""
    cached = usage.prompt_tokens_details.cached_tokens
    computed = usage.prompt_tokens - cached
    share = 100 * cached / usage.prompt_tokens
    text = f"{cached:,} cached | {computed:,} computed"
    return (
        f'<span class="bar" role="img" aria-label="{text} tokens of the prompt" title="{text} tokens of the prompt">'
        f'<i style="width:{share:.1f}%"></i></span><span class="bar-text">{text}</span>'
    )


def _figures(one: Exchange) -> Iterator[str]:
    if one.timing is not None and one.timing.first_token_ms:
        yield f"first token {one.timing.first_token_ms:,.0f} ms"
    if one.usage is not None:
        yield counted(one.usage.completion_tokens, "token")
        rate = _rate(one.usage, one.timing)
        if rate is not None:
            yield f"{rate:,.0f} tokens/s"


def _rate(usage: Usage, timing: Timing | None) -> float | None:
    """Return the tokens per second after the first one; None for a single token."""
    spent_ms = 0.0 if timing is None else timing.total_ms - timing.first_token_ms
    count = usage.completion_tokens - 1
    return 1000 * count / spent_ms if count > 0 and spent_ms > 0 else None


def _badge(text: str) -> str:
    return f'<span class="badge {escape(text)}">{escape(text)}</span>'


def live_html(conversation: Conversation, problem: str | None) -> str:
    """Show the turn in progress, and the error of the last one."""
    live = conversation.live
    if live is not None:
        then = "stops" if live.is_cancelled else "goes on"
        waits = f'<p class="waits" role="status">The server does not answer. The reply {then} when it is back.</p>'
        state = (
            waits if problem else '<span class="dots" role="status" aria-label="Replying"></span>'
        )
        return (
            f'<article class="turn live" aria-label="Turn in progress">{_prompt(live.prompt, live.files)}'
            f'<div class="reply">{reply_html(live.text)}{state}</div></article>'
        )
    error = "" if conversation.error is None else error_html(conversation.error)
    ended = _ENDED.get(conversation.state)
    if not (error or ended or conversation.exchanges):
        return _EMPTY
    return error + (f'<p class="ended" role="status">{ended}</p>' if ended else "")


def error_html(error: Exception) -> str:
    """Show an error: of the server with its code and field."""
    code, field = "", ""
    if isinstance(error, StatefulError):
        code = f"<b>{escape(error.code)}</b> "
        field = f" <code>{escape(error.field)}</code>" if error.field else ""
    elif isinstance(error, ServerUnreachable):
        code = "<b>The server does not answer.</b> "
    return f'<p class="error" role="alert">{code}{escape(str(error))}{field}</p>'


def head_html(conversation: Conversation, context_tokens: int | None, *, is_side: bool) -> str:
    """Show the title of a pane, and how full its context is."""
    saved = conversation.saved
    title = "New session" if saved is None else saved.title
    fork = '<span class="badge">fork</span>' if saved is not None and saved.fork_of else ""
    session_id = "" if saved is None else f' title="Session {escape(saved.id)}"'
    close = button("leave", "Close this pane", "&times;") if is_side else ""
    return (
        f'<div class="pane-head"><h2{session_id}>{escape(title)}</h2>{fork}'
        f"{_meter(conversation.tokens, context_tokens)}{close}</div>"
    )


def _meter(used: int, most: int | None) -> str:
    if most is None:
        return ""
    share = min(100.0, 100 * used / most)
    level = "full" if share >= 90 else "high" if share >= 70 else ""
    return (
        f'<span class="meter {level}" role="meter" aria-label="Context" aria-valuemin="0" aria-valuemax="{most}"'
        f' aria-valuenow="{used}" title="{used:,} of {most:,} tokens of context"><i style="width:{share:.1f}%"></i></span>'
        f'<span class="meter-text">{used:,} / {most:,}</span>'
    )


def sessions_html(sessions: Iterable[SavedSession], shown: Iterable[str]) -> str:
    """List the sessions of this browser; those on the page are marked."""
    on_page = set(shown)
    rows = [_session(one, is_shown=one.id in on_page) for one in sessions]
    return f'<ul class="sessions">{"".join(rows)}</ul>' if rows else "<p>No sessions yet.</p>"


def _session(one: SavedSession, *, is_shown: bool) -> str:
    facts = [counted(len(one.turns), "turn"), *(["fork"] if one.fork_of else [])]
    if len(one.turns) > 1:
        facts.append(escape(one.turns[-1].prompt[:60]))
    badge = "" if one.state == "open" else _badge(one.state)
    current = ' aria-current="true"' if is_shown else ""
    remove = "Close" if one.state == "open" else "Forget"
    return (
        f'<li class="{one.state}"{current}><button type="button" class="title" data-do="show" data-id="{escape(one.id)}">'
        f"<span>{escape(one.title)}</span><small>{' &middot; '.join(facts)}</small></button>{badge}"
        f"{button('beside', f'Show beside: {one.title}', '&#x25EB;', id=one.id)}"
        f"{button('end', f'{remove}: {one.title}', '&times;', id=one.id)}</li>"
    )


def status_html(model: str, url: str, problem: str | None, refusal: str | None) -> str:
    """Show the server and its state."""
    state = "down" if problem or refusal else "up"
    text = "server down" if problem else "refused" if refusal else "connected"
    hint = problem or refusal or f"{model} at {url}"
    return (
        f'<span class="model">{escape(model)}</span>'
        f'<span class="status {state}" role="status" title="{escape(hint)}"><i></i>{text}</span>'
    )
