"""What the client of the keyword spotter does without a server."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest

from examples.keywords.client import (
    FOLDER,
    PIECE_BYTES,
    SILENCE,
    Report,
    check,
    in_turn,
    pieces,
    read_wav,
    summary,
    whole,
)

SAMPLE = min((FOLDER / "samples").glob("*.wav"))


def test_pieces() -> None:
    """A recording goes out in whole pieces of 100 ms, with silence behind it."""
    samples = read_wav(SAMPLE)
    assert samples.endswith(SILENCE)
    assert {len(piece) for piece in pieces(samples, None)} == {PIECE_BYTES}
    assert b"".join(pieces(samples, None)) == samples


def test_in_turn() -> None:
    """Every microphone hears all recordings, of which another one is the first."""
    assert in_turn([b"a", b"b", b"c"]) == [b"abc", b"bca", b"cab"]


def test_other_formats(tmp_path: Path) -> None:
    """A recording that the model cannot take is refused, with how to convert it."""
    path = tmp_path / "cd.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes(bytes(400))
    with pytest.raises(ValueError, match="2 channels, 16 bits, 44100 Hz; convert it: ffmpeg"):
        read_wav(path)
    path.write_bytes(b"no recording")
    with pytest.raises(ValueError, match=r"cd\.wav"):
        read_wav(path)


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` counts the microphones whose words and times are those of the whole recording."""
    samples = read_wav(SAMPLE)
    right = whole(samples)
    late = [(step + 1, word) for step, word in right]
    assert check([samples], [Report(right)] * 2)
    assert not check([samples], [Report(right), Report(late)])
    assert "1 of 2 microphones" in capsys.readouterr().out


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """A word is printed with its time, and the real-time factor is audio over time."""
    report = Report()
    report.add(3, [0, 0], 0.010)
    report.add(3, [0, 2], 0.030)
    assert report.words == [(4, 2)]
    assert capsys.readouterr().out == "  0.20 s  microphone  3  calendar\n"
    text = summary([report, report], wall_s=0.1)
    assert "real-time factor 4.0: 0.4 s of audio in 0.1 s" in text
    assert "p50 20.0 ms" in text
