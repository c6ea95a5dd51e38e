"""The bytes of single tokens, which may be less than a character."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ts_stateful.protocol.answers import Logprob, TopLogprob
from ts_stateful.protocol.logprobs import TokenLogprob

__all__ = ["TokenBytes"]

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"  # a space in vocabularies of SentencePiece


class TokenBytes:
    """The bytes of the tokens of one tokenizer, as its decoder joins them: byte-level or SentencePiece, else token by token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for an id that the vocabulary lacks."""
        if token_id not in self._known:
            self._known[token_id] = self._read(token_id)
        return self._known[token_id]

    def logprobs(self, tokens: Sequence[TokenLogprob], indexes: Iterable[int]) -> list[Logprob]:
        """Return the log-probabilities of the tokens of a reply that have these indexes."""
        return [
            Logprob(
                **self._named(tokens[at].id, tokens[at].logprob),
                text_offset=tokens[at - 1].end if at else 0,
                top_logprobs=[TopLogprob(**self._named(*one)) for one in tokens[at].top],
            )
            for at in sorted(indexes)
        ]

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        data = self[token]
        text = data.decode("utf-8", "replace")
        return {"id": token, "token": text, "bytes": list(data), "logprob": logprob}

    def _read(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return bytes(added.content.encode())
        token = self._tokenizer.id_to_token(token_id) or ""
        if "ByteLevel" in self._decoder:
            return b"".join(_BYTES.get(char) or char.encode() for char in token)
        if (fallback := _FALLBACK.fullmatch(token)) and "ByteFallback" in self._decoder:
            return bytes([int(fallback[1], 16)])
        if _SPACE in self._decoder:
            return token.replace(_SPACE, " ").encode()
        return self._tokenizer.decode([token_id]).encode()

    @cached_property
    def _decoder(self) -> str:
        decoder = self._tokenizer.decoder
        return "" if decoder is None else decoder.__getstate__().decode()

    @cached_property
    def _added(self) -> dict[int, AddedToken]:
        return self._tokenizer.get_added_tokens_decoder()


_BYTES = {char: bytes([byte]) for byte, char in bytes_to_unicode().items()}
