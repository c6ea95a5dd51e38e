"""LangChain in a session: the first request opens it, and later ones name it by a header.

    ts-stateful serve examples/shapes/model
    pip install langchain-openai
    python examples/langchain_chat.py

LangChain sends all messages every time; the server computes those that the session does not have. Without the header the
conversation is recognised by its messages, for 10 minutes. In a session it is written to the store, and survives the server.
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI

SCENE = Path(__file__).resolve().parent / "shapes" / "scene.png"
HEADER = "ts_request_sequence_id"


def main() -> None:
    """Ask about an image, open a session by it, and go on there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1", help="%(default)s")
    parser.add_argument("--image", type=Path, default=SCENE, help="default: %(default)s")
    options = parser.parse_args()
    picture = f"data:image/png;base64,{base64.b64encode(options.image.read_bytes()).decode()}"

    model = ChatOpenAI(
        base_url=options.base_url, api_key="none", model="chat", include_response_headers=True
    )
    image = {"type": "image_url", "image_url": {"url": picture}}
    question: Any = {"type": "text", "text": "What color is the circle?"}
    messages: list[BaseMessage] = [HumanMessage([image, question])]
    reply = model.bind(extra_headers={HEADER: "NEW_SESSION"}).invoke(messages)
    print("What color is the circle?", reply.text)

    session_id = reply.response_metadata["headers"][HEADER].partition(";")[0]
    in_session = model.bind(extra_headers={HEADER: session_id})
    for question in ("And the square?", "Which shape is yellow?", "What color is it?"):
        messages += [reply, HumanMessage(question)]
        reply = in_session.invoke(messages)
        usage = reply.usage_metadata
        cached = usage["input_token_details"]["cache_read"]
        print(f"{question} {reply.text}  [{cached} of {usage['input_tokens']} tokens cached]")
    print(f"go on with {HEADER}: {session_id}")


if __name__ == "__main__":
    main()
