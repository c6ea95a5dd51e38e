"""This package's engine for a language model, without socket, server and clients."""

from __future__ import annotations

import io
import time
from pathlib import Path

import PIL.Image
import torch

from benchmarks.clients.conversation import Turn
from benchmarks.driver import Driver
from benchmarks.inputs import Inputs, text_of
from benchmarks.model import IMAGE_TOKENS
from benchmarks.plan import PROMPT_TOKENS
from benchmarks.rates import steady_rate
from ts_stateful.config.schema import load_config
from ts_stateful.language.engine import LanguageKind
from ts_stateful.language.network.load import load_model
from ts_stateful.protocol.requests import Open, Prompt, Rewind

__all__ = ["EngineAlone"]


class EngineAlone:
    """An engine that this process drives; sessions are not written to a store, and stay for the next measurement."""

    def __init__(self, model: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        config = load_config(
            {"maxNumSequence": 64, "handler": {"model": str(model), "threads": threads}}
        )
        self._inputs = Inputs()
        loaded = load_model(config.handler, model, torch.device("cpu"))
        assert loaded.encoder is not None
        self._encoder = loaded.encoder
        self._driver = Driver(loaded, config)
        kind = self._driver.engine.kind
        assert isinstance(kind, LanguageKind)
        self._drafter = kind.decoding.drafter
        self._guesses = self._drafter.guesses
        self._sessions: list[str] = []

    def decode(self, width: int, history: int, num_tokens: int, guesses: bool = True) -> float:
        """Return tokens a second of `width` streams, while all run, in sessions of `history` tokens with their prompts.

        Sessions stay; `history` is the same at each call. Tokens are guessed if `guesses`, and where that gains time.
        """
        self._drafter.guesses = self._guesses if guesses else None
        while len(self._sessions) < width:
            self._open(history - PROMPT_TOKENS)
        sessions = self._sessions[:width]
        sent_at = time.perf_counter()
        requests = [self._submit(session, PROMPT_TOKENS, num_tokens) for session in sessions]
        for request in requests:
            self._driver.wait(request)
        turns = [Turn.of(sent_at, self._driver.pieces[request]) for request in requests]
        self._driver.pieces.clear()
        for session in sessions:
            self._driver.ask(Rewind(session_id=session, to_turn=1))
        return steady_rate(turns)

    def encode_image(self) -> float:
        """Return the milliseconds that the vision tower and the projector take for an image."""
        encoder = self._encoder
        picture = PIL.Image.open(io.BytesIO(self._inputs.picture())).convert("RGB")
        image = encoder.prepare(picture)
        began_at = time.perf_counter()
        with torch.inference_mode():
            encoder.tower_of(image).encode(image)
        return 1000 * (time.perf_counter() - began_at)

    def _open(self, num_tokens: int) -> None:
        session = f"session-{len(self._sessions)}"
        self._sessions.append(session)
        picture = self._inputs.picture()
        self._driver.ask(Open(session_id=session), creates_session=True, attachments=(picture,))
        self._driver.wait(self._submit(session, num_tokens - IMAGE_TOKENS - 1, 1))

    def _submit(self, session: str, num_prompt: int, num_tokens: int) -> str:
        prompt = text_of(self._inputs.prompt(num_prompt))
        return self._driver.submit(
            Prompt(
                session_id=session,
                prompt=prompt,
                max_new_tokens=num_tokens,
                ignore_eos=True,
                stream=True,
            )
        )
