"""Several sessions at once with asyncio, over HTTP: their replies are streamed side by side.

Start the server, then the program:

    ts-stateful serve examples/shapes/model
    python examples/async_sessions.py --sessions 8
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

SCENE = Path(__file__).resolve().parent / "shapes" / "scene.png"
QUESTIONS = ("What color is the circle?", "And the square?", "Which shape is yellow?")
HEADER = "ts_request_sequence_id"


@asynccontextmanager
async def opened(client: httpx.AsyncClient, image: str) -> AsyncIterator[str]:
    """Open a session on an image in base64, and close it at the end of the block."""
    answer = await client.post("", json={"type": "open", "images": [{"base64": image}]})
    answer.raise_for_status()
    session_id = answer.json()["session_id"]
    try:
        yield session_id
    finally:
        await client.post("", json={"type": "close"}, headers={HEADER: session_id})


async def stream(client: httpx.AsyncClient, session_id: str, prompt: str) -> AsyncIterator[str]:
    """Yield the pieces of a reply as they come; a stream that is left early cancels its turn."""
    document = {"prompt": prompt, "stream": True}
    async with client.stream("POST", "", json=document, headers={HEADER: session_id}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))["text"]


async def converse(client: httpx.AsyncClient, image: str, number: int) -> None:
    """Ask all questions in a session of its own."""
    async with opened(client, image) as session_id:
        for question in QUESTIONS:
            pieces = [piece async for piece in stream(client, session_id, question)]
            print(f"session {number}: {question} {''.join(pieces)}", flush=True)


async def main() -> None:
    """Run all conversations at the same time; the first error ends them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080/predictions/chat", help="default: %(default)s"
    )
    parser.add_argument("--image", type=Path, default=SCENE, help="default: %(default)s")
    parser.add_argument("--sessions", type=int, default=4, help="default: %(default)s")
    options = parser.parse_args()
    image = base64.b64encode(options.image.read_bytes()).decode()
    async with httpx.AsyncClient(base_url=options.url, timeout=120, trust_env=False) as client:
        await asyncio.gather(
            *(converse(client, image, number) for number in range(options.sessions))
        )


if __name__ == "__main__":
    asyncio.run(main())
