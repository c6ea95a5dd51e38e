"""The command line of the fuzzer: for how long, from which seed, and at which server."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.progress import Progress
from tests.e2e.server import profile_server
from tests.fuzz.parsers import PARSERS, check
from tests.fuzz.programs import PROGRAMS, read
from tests.fuzz.search import Finding, inputs, search
from tests.fuzz.siege import DEADLINE_S, Siege
from ts_stateful.protocol.profile import Profile

__all__ = ["main"]

_EPILOG = """\
Half of the time, parsers get inputs that are made from those of tests/fuzz/corpus. Each must return or raise one of its own
errors, within bounds of calls and memory. In the other half a TorchServe with the small model of examples/shapes gets programs
of attacks over HTTP and gRPC, at first the known ones. After each attack a new client and a session that was open before must
be answered rightly.

The first input of each parser that fails, and the first program, are made as small as possible and kept in build/fuzz, with a
line that runs them again. Keep one that was a defect in the corpus, under a name that says what it is.

With --url the attacks go to a server that is running already, and only those. It must serve the model of examples/shapes as
`chat`, and nobody else may need it.

examples:
  python -m tests.fuzz --minutes 60 --seed 7
  python -m tests.fuzz --url http://127.0.0.1:8080 --grpc-url grpc://127.0.0.1:7070
  python -m tests.fuzz --replay build/fuzz/url/0123456789ab
"""
_INPUTS, _PROGRAMS = 200, 5  # between two looks at the clock
_REPLAYS = 20  # of a program: it may need a race


class _Part:
    """A part of the time, and its bar, in seconds."""

    def __init__(self, progress: Progress, seconds: float) -> None:
        self._progress = progress
        self._began_at, self._seconds, self._shown = time.monotonic(), seconds, 0
        progress.expect(round(seconds))

    def is_over(self) -> bool:
        """Return True if the time is over."""
        return time.monotonic() - self._began_at >= self._seconds

    def show(self, line: str) -> None:
        """Move the bar, which has a line beside it."""
        passed = min(self._seconds, time.monotonic() - self._began_at)
        for _ in range(self._shown, int(passed)):
            self._progress.step(line)
        self._shown = int(passed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, and print what was found; return 1 if that is something."""
    options = _parser().parse_args(arguments)
    if options.replay is not None:
        return _replay(options.replay, options)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    num_parts = 1 if options.url else 2
    progress, seconds = Progress(num_parts), 60 * options.minutes / num_parts
    progress.say(f"seed {seed}")
    found: list[Finding] = []
    if not options.url:
        with progress.stage(f"parsers: {', '.join(PARSERS)}"):
            found += _search_parsers(seed, _Part(progress, seconds))
    with progress.stage("attacks on a server"), _siege(options) as siege:
        found += _search_server(siege, seed, _Part(progress, seconds))
        progress.say(f"      {siege.num_attacks} attacks, slowest answer {siege.slowest_s:.1f} s")
    for finding in found:
        sys.stdout.write(f"{finding}\n\n")
    sys.stdout.write(f"{len(found)} findings from seed {seed}\n")
    return 1 if found else 0


def _search_parsers(seed: int, part: _Part) -> list[Finding]:
    found: dict[str, Finding] = {}
    while not part.is_over() and len(found) < len(PARSERS):
        for name in PARSERS:
            if name in found or part.is_over():
                continue
            finding = search(name, PARSERS[name], seed=seed, examples=_INPUTS)
            found |= {name: finding} if finding else {}
            part.show(f"{len(found)} findings, now {name}")
        seed += 1
    return list(found.values())


def _search_server(siege: Siege, seed: int, part: _Part) -> list[Finding]:
    for program in map(read, inputs(PROGRAMS).values()):  # known ones first
        if found := siege.tried(program):
            return [found]
        part.show("known programs")
    while not part.is_over():
        found = siege.search(examples=_PROGRAMS, seed=seed, is_over=part.is_over)
        if found:
            return [found]
        seed += 1
        part.show(f"{siege.num_attacks} attacks, slowest answer {siege.slowest_s:.1f} s")
    return []


def _replay(path: Path, options: argparse.Namespace) -> int:
    """Run an input again by the parser of its folder's name, or a program; what it breaks is raised."""
    name, data = path.resolve().parent.name, path.read_bytes()
    if name in PARSERS:
        sys.stdout.write(f"{check(PARSERS[name], data) or 'accepted'}\n")
        return 0
    with _siege(options) as siege:
        for _ in range(_REPLAYS):
            siege.run(read(data))
    sys.stdout.write(f"{siege.num_attacks} attacks, slowest answer {siege.slowest_s:.1f} s\n")
    return 0


@contextlib.contextmanager
def _siege(options: argparse.Namespace) -> Iterator[Siege]:
    """Besiege the server that the options name, or one that is started for it."""
    with contextlib.ExitStack() as stack:
        url, grpc_url = options.url, options.grpc_url
        if not url:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = profile_server(Profile.CONTINUOUS, folder, name="fuzz")
            stack.enter_context(server)
            url, grpc_url = server.http_url, server.grpc_url
        yield Siege(url, grpc_url, options.deadline)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Give parsers and a server what no client should send, and look for what breaks.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="of searching (default: 10)")
    add("--seed", type=int, help="of all inputs (default: a random one, which is printed)")
    add("--url", default="", help="attack the server of this HTTP address")
    add("--grpc-url", default="grpc://127.0.0.1:7070", help="its gRPC address (%(default)s)")
    deadline = "seconds in which others are answered after an attack (default: %(default)s)"
    add("--deadline", type=float, default=DEADLINE_S, metavar="S", help=deadline)
    add("--replay", type=Path, metavar="FILE", help="run one input or program again")
    return parser
