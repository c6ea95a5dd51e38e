"""The encoding of a chat whose control tokens are marked, by each supported release of transformers."""

from __future__ import annotations

import re
from inspect import signature
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

__all__ = ["MARK", "control_tokens", "encode_marked", "unmarked"]

MARK, _END = chat_template_utils.mark_control_tokens("", re.compile("$"))
"""The character before a control token that a text spells out, and the one after it."""

# Release 5.20, the last one for Python 3.10, does not find the markers by itself.
_ASKS_FOR_MARKERS = "markers_re" in signature(chat_template_utils.encode_marked_chat).parameters


def encode_marked(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the ids of a text that was rendered from inputs marked by `mark_control_tokens`.

    Raises:
        ValueError: a control token in it cannot be encoded as text.
    """
    if MARK not in text and _END not in text:
        # As transformers would, without encoding a line feed first.
        return list(tokenizer.encode(text, add_special_tokens=False))
    markers = ()
    if _ASKS_FOR_MARKERS:
        controls = tuple(tokenizer.added_tokens_encoder)
        markers = chat_template_utils._get_control_token_patterns(controls)[1:]
    ids: list[int] = chat_template_utils.encode_marked_chat(tokenizer, text, *markers)
    return ids


def unmarked(text: str) -> str:
    """Return a text without the markers."""
    return text.replace(MARK, "").replace(_END, "")


def control_tokens(tokenizer: PreTrainedTokenizerFast, owner: Any) -> set[str]:
    """Return the tokens that no text of a client becomes: special ones, and added ones that the template of `owner` writes.

    Other added tokens are words, as for `sanitize_control_tokens` of transformers.
    """
    template = str(getattr(owner, "chat_template", None) or "")
    added = tokenizer.added_tokens_decoder.values()
    tokens = {token.content for token in added if token.special or token.content in template}
    unknown = tokenizer.unk_token
    if unknown in tokens and _is_made_from_text(tokenizer, unknown):
        tokens.remove(unknown)
    return {token for token in tokens if not token.isspace()}


def _is_made_from_text(tokenizer: PreTrainedTokenizerFast, token: str) -> bool:
    """Return True for a token that stands for any unknown text, and so also for its own name: it controls nothing."""
    marked = chat_template_utils.mark_control_tokens(token, re.compile(re.escape(token)))
    try:
        encode_marked(tokenizer, marked)
    except ValueError:
        return True
    return False
