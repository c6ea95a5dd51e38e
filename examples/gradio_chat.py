"""Gradio in 20 lines: a page to chat, where each tab of a browser has a session that ends with it.

    ts-stateful serve examples/shapes/model
    pip install 'torchserve-stateful[web]'
    python examples/gradio_chat.py grpc://127.0.0.1:7070

`ts-stateful chat --web` is the page of this package, with branches side by side.
"""

import sys
from collections.abc import Iterator
from typing import Any

import gradio

from ts_stateful.client import Session, connect

server = connect(sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:7070", model="chat")
sessions: dict[str | None, Session] = {}  # by tab


def answer(message: dict[str, Any], history: list[Any], tab: gradio.Request) -> Iterator[str]:
    """Yield the reply as it grows. The session goes back with the page, where a reply was undone or is retried."""
    turns = sum(entry["role"] == "assistant" for entry in history)
    if turns == 0:  # a new tab, or a conversation that was cleared
        end(tab)
        sessions[tab.session_hash] = server.open()
    sessions[tab.session_hash].rewind(turns)
    text = ""
    for piece in sessions[tab.session_hash].prompt(message["text"], images=message["files"]):
        yield (text := text + piece)


def end(tab: gradio.Request) -> None:
    """Close the session of a tab."""
    if tab.session_hash in sessions:
        sessions.pop(tab.session_hash).close()


with gradio.ChatInterface(answer, multimodal=True, title="Shapes", api_name="chat") as page:
    page.unload(end)

if __name__ == "__main__":
    page.launch()
