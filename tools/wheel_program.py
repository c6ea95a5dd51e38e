"""A program of a user of the wheel, which `tools/wheels.py` checks and runs.

Usage: wheel_program.py URL IMAGE
"""

from __future__ import annotations

import sys
from pathlib import Path

from ts_stateful.client import connect


def main() -> None:
    """Hold a conversation about an image, and print the replies."""
    url, image = sys.argv[1:]
    with connect(url, model="chat") as server, server.open(images=[Path(image)]) as session:
        print("".join(session.prompt("What color is the circle?")))
        with session.fork() as fork:
            print(fork.ask("And the square?"))
        # A type checker that sees no types of the wheel finds this comment unused, which is an error.
        turns: str = session.info().turns  # type: ignore[assignment]
        print(turns)


if __name__ == "__main__":
    main()
