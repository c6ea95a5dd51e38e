"""Speech from eSpeak NG, and when each word of it was said.

Owns the calls of its C library (speak_lib.h of eSpeak NG 1.50 and later), which tells the times that its command line does not.
`python -m examples.keywords.speech TEXT FILE.wav` records a sentence.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import re
import sys
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE: Final = 16_000
LEVEL: Final = 0.1  # root mean square of every utterance, of a full scale of 1
ESPEAK_RATE: Final = 22_050
INSTALL: Final = (
    "eSpeak NG is missing: install it with `apt-get install espeak-ng` (Debian, Ubuntu), "
    "`dnf install espeak-ng` (Fedora) or `brew install espeak-ng` (macOS)"
)

# From speak_lib.h.
_SYNCHRONOUS, _TELL_PHONEMES_AND_NEVER_EXIT, _POSITION_CHARACTER, _UTF8 = 2, 0x8001, 1, 1
_RATE, _VOLUME, _PITCH = 1, 2, 3
_EVENT_WORD, _EVENT_PHONEME = 1, 7
_WORD: Final = re.compile(r"[A-Za-z']+")
_SOFT: Final = 40  # of a volume of 100, with which some voices are cut off at the top


class Voice(NamedTuple):
    """Who speaks, and how."""

    name: str  # an accent of eSpeak NG and perhaps one of its variants, such as en-us+f2
    words_per_minute: int = 160
    pitch: int = 50  # from 0 to 99


class Word(NamedTuple):
    """A word in a recording."""

    text: str  # lower case
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Utterance:
    """16-bit samples at SAMPLE_RATE, and the words in them."""

    samples: NDArray[np.int16]
    words: tuple[Word, ...]


class _Event(ctypes.Structure):
    """espeak_EVENT."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # in characters, from 1
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # ms
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    ]


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@dataclass
class _Recording:
    """What the library hands over while it speaks."""

    pieces: list[NDArray[np.int16]] = field(default_factory=list)
    words: list[tuple[int, int]] = field(default_factory=list)  # position from 1, sample
    phonemes: list[tuple[str, int]] = field(default_factory=list)  # name, sample

    def add(self, samples: Any, num_samples: int, events: Any) -> int:
        """espeak's callback; 0 asks for more."""
        if samples and num_samples:
            self.pieces.append(np.ctypeslib.as_array(samples, (num_samples,)).copy())
        index = 0
        while events[index].type:
            event = events[index]
            if event.type == _EVENT_WORD and event.length:
                self.words.append((event.text_position, event.sample))
            elif event.type == _EVENT_PHONEME:
                self.phonemes.append((event.id.decode(errors="replace"), event.sample))
            index += 1
        return 0


class Espeak:
    """The synthesizer. One per process: the library has global state.

    What a voice says depends a little on what was said before: only the same requests in the same order in a fresh process give
    the same samples.

    Raises:
        OSError: eSpeak NG is not installed.
    """

    def __init__(self) -> None:
        path = ctypes.util.find_library("espeak-ng")
        if path is None:
            raise OSError(INSTALL)
        self._library = ctypes.CDLL(path)
        rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, None, _TELL_PHONEMES_AND_NEVER_EXIT)
        if rate != ESPEAK_RATE:
            raise OSError(f"eSpeak NG does not start ({rate}); {INSTALL}")
        self._recording = _Recording()
        self._callback = _Callback(self._receive)  # kept: the library does not
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: Any, num_samples: int, events: Any) -> int:
        return self._recording.add(samples, num_samples, events)

    def say(self, text: str, voice: Voice) -> Utterance:
        """What `voice` makes of an English text of ASCII characters, as loud as LEVEL.

        Raises:
            ValueError: there is no such voice.
        """
        if self._library.espeak_SetVoiceByName(voice.name.encode()):
            raise ValueError(f"eSpeak NG has no voice {voice.name}")
        for parameter, value in (
            (_RATE, voice.words_per_minute),
            (_VOLUME, _SOFT),
            (_PITCH, voice.pitch),
        ):
            self._library.espeak_SetParameter(parameter, value, 0)
        self._recording = recording = _Recording()
        body = text.encode("ascii") + b"\0"
        self._library.espeak_Synth(body, len(body), 0, _POSITION_CHARACTER, 0, _UTF8, None, None)
        whole = np.concatenate([*recording.pieces, np.zeros(1, np.int16)])
        samples = _resample(whole)
        samples *= 2**15 * LEVEL / max(1e-9, float(np.sqrt(np.square(samples).mean())))
        limited = samples.clip(-(2**15), 2**15 - 1).astype(np.int16)
        return Utterance(limited, tuple(_words(text, recording, len(whole))))


def _words(text: str, recording: _Recording, length: int) -> Iterator[Word]:
    """A word ends with its last phoneme. eSpeak reads some pairs as one word ("on the"), which ends where the second does."""
    ends = [start for _, start in recording.phonemes[1:]] + [length]
    spoken = [  # without pauses
        (start, end)
        for (name, start), end in zip(recording.phonemes, ends, strict=True)
        if not name.startswith("_")
    ]
    starts = [start for _, start in recording.words]
    for (position, start), following in zip(recording.words, [*starts[1:], length], strict=True):
        own = [end for begin, end in spoken if start <= begin < following]
        # The first word of a further sentence is said to begin with the space in front of it.
        name = _WORD.search(text, position - 1)
        if own and name:
            yield Word(name[0].lower(), start / ESPEAK_RATE, own[-1] / ESPEAK_RATE)


def _resample(samples: NDArray[np.int16]) -> NDArray[np.float64]:
    """From ESPEAK_RATE to SAMPLE_RATE, by a Fourier transform of whole blocks of 441 and 320 samples."""
    blocks = 2 + len(samples) // 441  # silence behind: the end leaks into the beginning
    spectrum = np.fft.rfft(samples, 441 * blocks)[: 160 * blocks + 1]
    resampled = np.fft.irfft(spectrum, 320 * blocks) * (320 / 441)
    return resampled[: round(len(samples) * 320 / 441)]


def main() -> int:
    """Record one sentence."""
    parser = argparse.ArgumentParser(description="Record a sentence as 16 kHz, mono, 16 bits.")
    parser.add_argument("text")
    parser.add_argument("file", help="the WAV file to write")
    parser.add_argument("--voice", default="en-us", help="such as en-us+f2 (%(default)s)")
    parser.add_argument("--speed", type=int, default=160, help="words per minute (%(default)s)")
    parser.add_argument("--pitch", type=int, default=50, help="from 0 to 99 (%(default)s)")
    options = parser.parse_args()
    try:
        spoken = Espeak().say(options.text, Voice(options.voice, options.speed, options.pitch))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    with wave.open(options.file, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(spoken.samples.astype("<i2").tobytes())
    for word in spoken.words:
        print(f"{word.start_s:6.2f} s  {word.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
