"""OpenAI's own client: an image, a streamed reply, and a second turn of which only the new part is computed.

    ts-stateful serve examples/shapes/model
    pip install openai
    python examples/openai_chat.py

Behind TorchServe (`make serve`) the base URL is http://127.0.0.1:8080/predictions/chat/1.0/v1.
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path
from typing import Any

from openai import OpenAI

SCENE = Path(__file__).resolve().parent / "shapes" / "scene.png"


def ask(client: OpenAI, messages: list[Any]) -> None:
    """Stream the reply to the messages, and append it to them."""
    stream = client.chat.completions.create(
        model="chat", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    text = ""
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
            print(f"  [{cached} of {chunk.usage.prompt_tokens} prompt tokens cached]")
    messages.append({"role": "assistant", "content": text})


def main() -> None:
    """Ask twice. The client sends the whole conversation each time, as OpenAI's interface demands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1", help="%(default)s")
    parser.add_argument("--image", type=Path, default=SCENE, help="default: %(default)s")
    options = parser.parse_args()

    picture = base64.b64encode(options.image.read_bytes()).decode()
    messages: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
                {"type": "text", "text": "What color is the circle?"},
            ],
        }
    ]
    # The key is the token, where the server asks for one.
    with OpenAI(base_url=options.base_url, api_key="none") as client:
        ask(client, messages)
        messages.append({"role": "user", "content": "And the square?"})
        ask(client, messages)


if __name__ == "__main__":
    main()
