"""The sticky-session sample with LLaVA on TorchServe: `start_session`, `send_text_prompt`, `close_session`.

Owns its schema, and its settings where a request has none: up to 1,024 tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ts_stateful.frontend.dialects.dialect import Letter, Translation, Unnamed, Whole
from ts_stateful.frontend.dialects.responder import Answer, Refusal, SpokenVoice, line_of
from ts_stateful.frontend.parsing.headers import RowHeaders
from ts_stateful.protocol.requests import Close, Image, Open, Prompt
from ts_stateful.protocol.session_ids import new_session_id, resolve_session_id
from ts_stateful.protocol.strict_json import convert

__all__ = ["Llava"]

_MAX_NEW_TOKENS = 1024
_ID_PREFIX = "ts-seq-"  # with which its clients expect an id to begin, as TorchServe's own do


class _Command(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", kw_only=True):
    session_id: str | None = None


class _Start(_Command, frozen=True, tag="start_session", kw_only=True):
    path: str


class _Send(_Command, frozen=True, tag="send_text_prompt", kw_only=True):
    prompt_text: str


class _Close(_Command, frozen=True, tag="close_session", kw_only=True):
    pass


_TYPES = {"start_session": _Start, "send_text_prompt": _Send, "close_session": _Close}


class _Voice(SpokenVoice):
    def __init__(self, say: Callable[[Answer], dict[str, object]] = lambda answer: {}) -> None:
        self._say = say

    def said(self, answer: Answer) -> bytes:
        return line_of(self._say(answer))

    def refused(self, refusal: Refusal) -> Whole:
        if refusal.field is not None and refusal.field.startswith("images["):
            refusal = replace(refusal, field="path")
        document = {"success": False, "error": refusal.sentence, "code": refusal.code}
        return Whole(refusal.status, line_of(document))


class Llava:
    """The dialect of that sample. It has no streams."""

    voice = _Voice()

    def speaks(self, letter: Letter) -> bool:
        """See `Dialect`."""
        kind = letter.document.get("type")
        return isinstance(kind, str) and kind in _TYPES

    def read(self, letter: Letter) -> Translation:
        """See `Dialect`."""
        asked: _Command = convert(letter.document, _TYPES[letter.document["type"]])
        if isinstance(asked, _Start):
            session_id = _new_id(letter.headers, asked.session_id)
            request = Open(session_id=session_id, images=(Image(url=asked.path),))
            return Translation(request, _Voice(lambda answer: {"session_id": answer.session_id}))
        if isinstance(asked, _Send):
            prompt = Prompt(
                session_id=asked.session_id,
                prompt=asked.prompt_text,
                max_new_tokens=_MAX_NEW_TOKENS,
            )
            voice = _Voice(lambda answer: {"response_text": answer.text})
            return Translation(prompt, voice, Unnamed.REFUSED)
        return Translation(
            Close(session_id=asked.session_id), _Voice(lambda answer: {"success": True})
        )


def _new_id(headers: RowHeaders, asked: str | None) -> str:
    """The id of a session that is opened: one that the client has chosen, TorchServe's, or a new one."""
    chosen = resolve_session_id(headers.session_id(), asked)
    return chosen or headers.minted_id or f"{_ID_PREFIX}{new_session_id()}"
