"""A session over plain HTTP: open it on an image, ask, read a stream, close. It needs nothing but Python.

Start the server, then the program:

    ts-stateful serve examples/shapes/model
    python examples/vqa_http.py --image examples/shapes/scene.png
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

SCENE = Path(__file__).resolve().parent / "shapes" / "scene.png"


class HttpSession:
    """A session, named by a header of every request."""

    def __init__(self, url: str, image: Path) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        encoded = base64.b64encode(image.read_bytes()).decode()
        opened = self.post({"type": "open", "images": [{"base64": encoded}]})
        self._headers["ts_request_sequence_id"] = opened["session_id"]

    def post(self, document: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer; the status of an error raises HTTPError."""
        with self._send(document) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def stream(self, prompt: str) -> None:
        """Print a reply as it comes: server-sent events, each a line that begins with `data: `."""
        with self._send({"prompt": prompt, "stream": True}) as response:
            for line in response:
                if line.startswith(b"data: "):
                    print(json.loads(line.removeprefix(b"data: "))["text"], end="", flush=True)
        print()

    def _send(self, document: dict[str, Any]) -> Any:
        request = Request(self._url, json.dumps(document).encode(), self._headers)
        return urlopen(request, timeout=120)


def main() -> None:
    """Ask about one image; the last question has no subject without the session."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080/predictions/chat", help="default: %(default)s"
    )
    parser.add_argument("--image", type=Path, default=SCENE, help="default: %(default)s")
    options = parser.parse_args()

    session = HttpSession(options.url, options.image)
    for question in ("How many shapes are there?", "Which shape is yellow?"):
        answer = session.post({"prompt": question})
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        print(f"{question} {answer['text']}  [{cached} of {usage['prompt_tokens']} tokens cached]")
    print("What color is it?", end=" ")
    session.stream("What color is it?")
    print("closed:", session.post({"type": "close"})["closed"])


if __name__ == "__main__":
    main()
