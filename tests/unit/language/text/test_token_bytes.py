"""The bytes of tokens add up to the text, whatever the tokenizer's kind."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.tiny import tokenizer_of
from ts_stateful.language.text.token_bytes import TokenBytes

TEXT = "Tell me a story, äöü 🙂, please."


def sentencepiece() -> Tokenizer:
    vocabulary = [f"<0x{byte:02X}>" for byte in range(256)] + list("▁Telmastory,p.")
    tokenizer = Tokenizer(
        models.BPE({token: index for index, token in enumerate(vocabulary)}, [], byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"Tell": 0, "me": 1, "?": 2}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT, "Tell me a story"], trainer)
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_the_bytes_of_all_tokens_are_those_of_the_text(make: object) -> None:
    """Also where a character is several tokens."""
    tokenizer = make()  # type: ignore[operator]
    ids = tokenizer.encode(TEXT).ids
    parts = [TokenBytes(tokenizer)[token] for token in ids]
    assert b"".join(parts) == TEXT.encode()
    assert any(b"\x80" <= part < b"\xc0" for part in parts)  # not a character by itself


def test_whole_words_are_their_text() -> None:
    """A vocabulary without a decoder."""
    tokenizer = words()
    assert [TokenBytes(tokenizer)[token] for token in tokenizer.encode("Tell me").ids] == [
        b"Tell",
        b"me",
    ]


def test_special_tokens_are_named_and_unknown_ids_are_empty() -> None:
    """An id may be a number of the model's for which the tokenizer has nothing."""
    tokenizer = tokenizer_of("<|endoftext|>").backend_tokenizer
    token_bytes = TokenBytes(tokenizer)
    special = tokenizer.token_to_id("<|endoftext|>")
    assert token_bytes[special] == b"<|endoftext|>"
    assert token_bytes[10**6] == b""
