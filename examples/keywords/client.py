"""A player of recordings to the keyword spotter, one stream for each microphone, that prints recognized words.

`make serve EXAMPLE=keywords` first. Audio goes out in pieces of 100 ms, at the pace at which a microphone delivers them.
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import sys
import threading
import time
import wave
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from ts_stateful.client import ClientError, Server, connect
from ts_stateful.protocol.errors import StatefulError

FOLDER: Final = Path(__file__).resolve().parent
WORDS: Final = (FOLDER / "model" / "keywords.txt").read_text().split()
SAMPLE_RATE: Final = 16_000
BYTES_PER_SAMPLE: Final = 2
STEP_S: Final = 0.05  # for which the model reports a word or none
PIECE_S: Final = 0.1
PIECE_BYTES: Final = int(PIECE_S * SAMPLE_RATE) * BYTES_PER_SAMPLE
# After a recording: a word is recognized a moment after its end.
SILENCE: Final = bytes(5 * PIECE_BYTES)
AHEAD: Final = 8  # unanswered pieces with --fast


@dataclass
class Report:
    """The answers to one microphone."""

    words: list[tuple[int, int]] = field(default_factory=list)  # step, and number from 1
    latencies_s: list[float] = field(default_factory=list)  # of each piece, from sending to answer
    num_steps: int = 0

    def add(self, microphone: int, words: Sequence[int], latency_s: float) -> None:
        """Count an answer and print the words in it."""
        self.latencies_s.append(latency_s)
        for word in words:
            self.num_steps += 1
            if word:
                self.words.append((self.num_steps, word))
                time_s = self.num_steps * STEP_S
                text = f"{time_s:6.2f} s  microphone {microphone:2}  {WORDS[word - 1]}\n"
                print(text, end="", flush=True)  # in one piece: other threads print too


def read_wav(path: Path) -> bytes:
    """Read the samples of a recording, with some silence, in whole pieces.

    Raises:
        ValueError: the file is not a WAV file of one channel of 16-bit samples at 16 kHz.
    """
    try:
        with wave.open(str(path)) as file:
            shape = file.getnchannels(), file.getsampwidth(), file.getframerate()
            samples: bytes = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path}: {error}") from None
    if shape != (1, BYTES_PER_SAMPLE, SAMPLE_RATE):
        raise ValueError(
            f"{path}: {shape[0]} channels, {8 * shape[1]} bits, {shape[2]} Hz; "
            f"convert it: ffmpeg -i {path} -ac 1 -ar 16000 -sample_fmt s16 16k.wav"
        )
    samples += SILENCE
    return samples + bytes(-len(samples) % PIECE_BYTES)


def in_turn(recordings: Sequence[bytes]) -> list[bytes]:
    """Join all recordings one after the other, beginning with each of them."""
    numbers = range(len(recordings))
    return [b"".join([*recordings[first:], *recordings[:first]]) for first in numbers]


def pieces(samples: bytes, begin_s: float | None) -> Iterator[bytes]:
    """Yield the pieces of a recording at the pace of a microphone that starts at `begin_s`; at once if None."""
    for number, offset in enumerate(range(0, len(samples), PIECE_BYTES), 1):
        if begin_s is not None:
            time.sleep(max(0.0, begin_s + number * PIECE_S - time.monotonic()))
        yield samples[offset : offset + PIECE_BYTES]


def live() -> Iterator[bytes]:
    """Yield pieces of raw samples from standard input."""
    while len(piece := sys.stdin.buffer.read(PIECE_BYTES)) == PIECE_BYTES:
        yield piece


def listen(server: Server, microphone: int, audio: Iterator[bytes], ahead: int = 0) -> Report:
    """Stream audio in one sequence and print the words; up to `ahead` pieces may be unanswered."""
    report = Report()
    sent_s: deque[float] = deque()
    with server.steps() as steps:

        def receive() -> None:
            words = steps.receive().outputs["word"].data
            report.add(microphone, words, time.monotonic() - sent_s.popleft())

        for piece in audio:
            sent_s.append(time.monotonic())
            steps.send({"audio": piece})
            if len(sent_s) > ahead:
                receive()
        while sent_s:
            receive()
    return report


def play(server: Server, recordings: Sequence[bytes], microphones: int, fast: bool) -> list[Report]:
    """Play a recording to each microphone, all at once; return their reports."""
    together = threading.Barrier(microphones)

    def one(microphone: int) -> Report:
        samples = recordings[microphone % len(recordings)]
        together.wait()
        if fast:
            return listen(server, microphone, pieces(samples, None), AHEAD)
        return listen(server, microphone, pieces(samples, time.monotonic()))

    with ThreadPoolExecutor(microphones) as pool:
        return list(pool.map(one, range(microphones)))


def whole(samples: bytes) -> list[tuple[int, int]]:
    """Run the model here on a whole recording; return the steps and numbers of its words."""
    import torch  # noqa: PLC0415 - with the model, needed for --check alone
    from safetensors.torch import load_file  # noqa: PLC0415

    served = yaml.safe_load((FOLDER / "model-config.yaml").read_text())["handler"]
    spotter = runpy.run_path(str(FOLDER / "model" / "keywords.py"))["KeywordSpotter"]
    model = spotter(**served["arguments"])
    model.load_state_dict(load_file(FOLDER / "model" / "weights.safetensors"))
    audio = torch.frombuffer(bytearray(samples), dtype=torch.int16).unsqueeze(0) / 2**15
    with torch.inference_mode():
        words = model.eval()(audio, *model.states(1))[0][0].tolist()
    return [(number, word) for number, word in enumerate(words, 1) if word]


def check(recordings: Sequence[bytes], reports: Sequence[Report]) -> bool:
    """Compare every microphone's words and their steps with those of the whole recording."""
    right = [whole(samples) for samples in recordings]
    same = [report.words == right[number % len(right)] for number, report in enumerate(reports)]
    print(f"as in the whole recording at once: {sum(same)} of {len(same)} microphones")
    return all(same)


def summary(reports: Sequence[Report], wall_s: float) -> str:
    """Write throughput and latency as text."""
    latencies_ms = [1000 * latency for report in reports for latency in report.latencies_s]
    audio_s = len(latencies_ms) * PIECE_S
    p50 = statistics.median(latencies_ms)
    p99 = statistics.quantiles(latencies_ms, n=100)[98] if len(latencies_ms) > 1 else p50
    return (
        f"{sum(len(report.words) for report in reports)} words, {len(reports)} microphones\n"
        f"real-time factor {audio_s / wall_s:.1f}: {audio_s:.1f} s of audio in {wall_s:.1f} s\n"
        f"answer to a piece of {1000 * PIECE_S:.0f} ms: p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    )


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="WAV files of 16 kHz, mono, 16 bits (those in samples/); - alone: raw samples from standard input",
    )
    parser.add_argument("--url", default="grpc://127.0.0.1:7070", help="default: %(default)s")
    parser.add_argument("--model", default="keywords", help="default: %(default)s")
    parser.add_argument(
        "--microphones", type=int, default=32, help="streams at the same time (%(default)s)"
    )
    parser.add_argument("--fast", action="store_true", help="do not wait for real time to pass")
    parser.add_argument(
        "--check", action="store_true", help="compare with the model run here on whole recordings"
    )
    return parser.parse_args()


def main() -> int:
    """Play and print; return 1 if --check finds a difference."""
    options = parse_arguments()
    files = options.files or sorted((FOLDER / "samples").glob("*.wav"))
    try:
        with connect(options.url, model=options.model, profile="sequence") as server:
            if files == [Path("-")]:
                listen(server, 0, live())
                return 0
            recordings = in_turn([read_wav(path) for path in files])
            begin_s = time.monotonic()
            reports = play(server, recordings, options.microphones, options.fast)
            print(summary(reports, time.monotonic() - begin_s))
    except (OSError, ValueError, ClientError, StatefulError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if not options.check or check(recordings, reports) else 1


if __name__ == "__main__":
    sys.exit(main())
