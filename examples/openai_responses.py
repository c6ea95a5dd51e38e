"""OpenAI's Responses API: the server keeps the conversation, and the client sends what is new.

    ts-stateful serve examples/shapes/model
    pip install openai
    python examples/openai_responses.py

Behind TorchServe (`make serve`) the base URL is http://127.0.0.1:8080/predictions/chat/1.0/v1.
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path

from openai import OpenAI
from openai.types.responses import Response

SCENE = Path(__file__).resolve().parent / "shapes" / "scene.png"


def show(question: str, response: Response) -> None:
    """Print a reply and its cost."""
    assert response.usage is not None  # a response that has ended has one
    cached = response.usage.input_tokens_details.cached_tokens
    print(
        f"{question} {response.output_text}  [{cached} of {response.usage.input_tokens} tokens cached]"
    )


def main() -> None:
    """Ask about an image, go on, branch from the first response, and stream."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1", help="%(default)s")
    parser.add_argument("--image", type=Path, default=SCENE, help="default: %(default)s")
    options = parser.parse_args()
    picture = f"data:image/png;base64,{base64.b64encode(options.image.read_bytes()).decode()}"

    with OpenAI(base_url=options.base_url, api_key="none") as client:
        question = "What color is the circle?"
        first = client.responses.create(
            model="chat",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": picture, "detail": "auto"},
                        {"type": "input_text", "text": question},
                    ],
                }
            ],
        )
        show(question, first)
        # Both follow the first response, so the second one of them is a branch. The image is not sent again.
        for question in ("And the square?", "And the triangle?"):
            show(
                question,
                client.responses.create(
                    model="chat", input=question, previous_response_id=first.id
                ),
            )
        question = "How many shapes are there?"
        with client.responses.stream(
            model="chat", input=question, previous_response_id=first.id
        ) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    print(f"delta: {event.delta}")
            show(question, stream.get_final_response())


if __name__ == "__main__":
    main()
