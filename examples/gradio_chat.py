"""A chat page in the browser with Gradio: the browser's conversation is a session, which the page's own history steers.

    ts-stateful serve examples/shapes/model
    pip install 'torchserve-stateful[web]'
    python examples/gradio_chat.py --port 7860

`ts-stateful chat --web` is the page of this package, with branches side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import gradio

from ts_stateful.client import Server, Session, connect


def page(server: Server) -> gradio.ChatInterface:
    """Return the page; a tab of a browser has one session at a time."""
    sessions: dict[str | None, Session] = {}

    def end(tab: gradio.Request) -> None:
        if (session := sessions.pop(tab.session_hash, None)) is not None:
            session.close()

    def answer(
        message: dict[str, Any], history: list[dict[str, Any]], tab: gradio.Request
    ) -> Iterator[str]:
        turns = sum(entry["role"] == "assistant" for entry in history)
        if turns > 0 and tab.session_hash in sessions:
            sessions[tab.session_hash].rewind(turns)  # where a reply was undone or is retried
        else:  # a new tab, or a conversation that was cleared
            end(tab)
            sessions[tab.session_hash] = server.open()
        text = ""
        for piece in sessions[tab.session_hash].prompt(message["text"], images=message["files"]):
            text += piece
            yield text

    chat = gradio.ChatInterface(answer, multimodal=True, title="Shapes", api_name="chat")
    with chat:
        chat.unload(end)
    return chat


def main() -> None:
    """Serve the page until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="grpc://127.0.0.1:7070", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=7860, help="default: %(default)s")
    options = parser.parse_args()
    with connect(options.url, model="chat") as server:
        page(server).launch(server_port=options.port)


if __name__ == "__main__":
    main()
