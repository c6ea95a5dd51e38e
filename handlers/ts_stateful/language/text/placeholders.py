"""Tokens that stand for images and clips in rendered text, and the ids in their places."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from ts_stateful.language.text.marked_chat import MARK

__all__ = ["Placeholder", "Placeholders"]


class Placeholder(NamedTuple):
    """The token of an image or clip in rendered text, and the type of its part of a message."""

    token: str
    part: str = "image"


class Placeholders:
    """The placeholders of a model, one for each kind of media; none for a text model.

    Where there are several, an image or clip is known by its ids, its expansion: the token of its placeholder is among them.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, placeholders: Sequence[Placeholder]
    ) -> None:
        self._tokenizer = tokenizer
        self._by_id = {tokenizer.convert_tokens_to_ids(each.token): each for each in placeholders}
        names = [re.escape(each.token) for each in placeholders]
        # Only one that a text spells out has a mark before it.
        self._pattern = re.compile("|".join(f"{name}(?<!{MARK}{name})" for name in names))

    def __bool__(self) -> bool:
        """Return True if there are any."""
        return bool(self._by_id)

    def of(self, expansion: Sequence[int]) -> Placeholder:
        """Return the placeholder of an image or clip."""
        if len(self._by_id) == 1:  # whose token Aya Vision replaces by others
            return next(iter(self._by_id.values()))
        return next(self._by_id[token] for token in expansion if token in self._by_id)

    def find(self, ids: Sequence[int]) -> Placeholder | None:
        """Return one of the placeholders that are among `ids`."""
        return next((self._by_id[token] for token in ids if token in self._by_id), None)

    def end_of_last(self, rendered: str) -> int:
        """Return the index after the last placeholder; 0 if there is none."""
        if not self:  # the pattern is empty: it matches before each character
            return 0
        return max((found.end() for found in self._pattern.finditer(rendered)), default=0)

    def expand(self, rendered: str, expansions: Sequence[Sequence[int]]) -> str:
        """Replace the placeholders of each kind by the expansions of that kind, as far as there are any."""
        if not expansions:
            return rendered
        left: dict[str, list[Sequence[int]]] = {}
        for ids in reversed(expansions):
            left.setdefault(self.of(ids).token, []).append(ids)
        decode: Callable[..., str] = self._tokenizer.decode

        def expanded(found: re.Match[str]) -> str:
            queue = left.get(found[0])
            return decode(queue.pop(), clean_up_tokenization_spaces=False) if queue else found[0]

        return self._pattern.sub(expanded, rendered)
