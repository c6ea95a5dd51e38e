"""The run of `ts-stateful chat --web`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

# Before Gradio's import: it would report its use to its makers, and keep uploads where other users may read them.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ts_stateful.cli.chat.loop import ChatOptions
from ts_stateful.cli.web.layout import head_script, style, theme
from ts_stateful.cli.web.page import ChatPage
from ts_stateful.cli.web.server_watch import ServerWatch
from ts_stateful.cli.web.tabs import BrowserTabs
from ts_stateful.cli.web.view import PageView
from ts_stateful.client import Server

__all__ = ["serve_page"]

_HOST = "127.0.0.1"
# A page of another host whose name was pointed at this machine gets nothing.
_KNOWN_HOSTS = Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"])
# What Gradio needs, and nothing of another host; no page shows this one in a frame.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self';"
    " form-action 'self'; frame-ancestors 'none'"
)
_OTHERS = ("cross-site", "same-site")
_MAX_UPLOAD_BYTES = 1_000_000_000  # the most that the client sends


class _GuardedAnswers:
    """Answers with headers for the browser that keep other pages, and other hosts, away.

    What pages of others send, for instance uploads that fill the disk, is refused; browsers name it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", _POLICY)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        site = Headers(scope=scope).get("sec-fetch-site") if scope.get("method") == "POST" else None
        answers = PlainTextResponse("Invalid origin", 403) if site in _OTHERS else self._app
        await answers(scope, receive, guarded)


def serve_page(
    server: Server, probe: Server, options: ChatOptions, url: str, port: int, prefix: str
) -> int:
    """Serve the page on loopback until interrupted; return the exit status.

    `probe` is a connection without retries, `prefix` that of the browser's keys.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the folder of uploads is removed
    logging.getLogger("uvicorn.error").addFilter(_concerns_a_page)
    watch = ServerWatch(probe)
    with tempfile.TemporaryDirectory(prefix="ts-stateful-chat-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        tabs = BrowserTabs(server, watch, options, Path(folder))
        blocks = ChatPage(tabs, PageView(watch, url), options).build(prefix)
        watch.start()
        try:
            _launch(blocks, options, port)
            sys.stdout.write(f"chat  http://{_HOST}:{port}\nready\n")
            sys.stdout.flush()
            blocks.block_thread()
        finally:
            watch.stop()
            blocks.close()
    return 0


def _concerns_a_page(record: logging.LogRecord) -> bool:
    """Return False for the stream of events of a page that was left: Gradio answers, and then raises that there is none."""
    error = record.exc_info[1] if record.exc_info else None
    cause = None if error is None else error.__cause__
    return not (isinstance(cause, HTTPException) and cause.status_code == 404)


def _launch(blocks: gr.Blocks, options: ChatOptions, port: int) -> None:
    given = [str(Path(name).resolve()) for name in (*options.images, *options.audio)]
    blocks.launch(
        server_name=_HOST,
        server_port=port,
        share=False,
        inbrowser=False,
        quiet=True,
        prevent_thread_lock=True,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        enable_monitoring=False,
        max_file_size=_MAX_UPLOAD_BYTES,
        allowed_paths=given,
        theme=theme(),
        css=style(),
        head=head_script(),
        app_kwargs={"middleware": [Middleware(_GuardedAnswers), _KNOWN_HOSTS]},
    )
