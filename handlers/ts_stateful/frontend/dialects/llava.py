"""The sticky-session sample with LLaVA on TorchServe: `start_session`, `send_text_prompt`, `close_session`."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ts_stateful.frontend.dialects.dialect import Translation, Unnamed, Whole
from ts_stateful.frontend.dialects.responder import EngineAnswer, EngineError, Translator, line_of
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.protocol.requests import Close, Image, Open, Prompt
from ts_stateful.protocol.session_ids import new_session_id, resolve_session_id
from ts_stateful.protocol.strict_json import convert

__all__ = ["Llava"]

_MAX_NEW_TOKENS = 1024  # the sample's setting; its requests have none
_ID_PREFIX = "ts-seq-"  # its clients expect this prefix, which TorchServe's own ids have


class _Command(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", kw_only=True):
    session_id: str | None = None


class _Start(_Command, frozen=True, tag="start_session", kw_only=True):
    path: str


class _Send(_Command, frozen=True, tag="send_text_prompt", kw_only=True):
    prompt_text: str


class _Close(_Command, frozen=True, tag="close_session", kw_only=True):
    pass


_TYPES = {"start_session": _Start, "send_text_prompt": _Send, "close_session": _Close}


class _Closed(Translator):
    def answer(self, answer: EngineAnswer) -> bytes:
        return line_of({"success": True})

    def error(self, error: EngineError) -> Whole:
        if error.field is not None and error.field.startswith("images["):
            error = replace(error, field="path")
        document = {"success": False, "error": error.sentence, "code": error.code}
        return Whole(error.status, line_of(document))


class _Started(_Closed):
    def answer(self, answer: EngineAnswer) -> bytes:
        return line_of({"session_id": answer.session_id})


class _Sent(_Closed):
    def answer(self, answer: EngineAnswer) -> bytes:
        return line_of({"response_text": answer.text})


class Llava:
    """The dialect of that sample. It has no streams."""

    responder = _Closed()

    def matches(self, body: RequestBody) -> bool:
        """See `Dialect`."""
        kind = body.document.get("type")
        return isinstance(kind, str) and kind in _TYPES

    def read(self, body: RequestBody) -> Translation:
        """See `Dialect`."""
        asked: _Command = convert(body.document, _TYPES[body.document["type"]])
        if isinstance(asked, _Start):
            chosen = resolve_session_id(body.headers.session_id(), asked.session_id)
            session_id = chosen or body.headers.minted_id or f"{_ID_PREFIX}{new_session_id()}"
            request = Open(session_id=session_id, images=(Image(url=asked.path),))
            return Translation(request, _Started())
        if isinstance(asked, _Send):
            prompt = Prompt(
                session_id=asked.session_id,
                prompt=asked.prompt_text,
                max_new_tokens=_MAX_NEW_TOKENS,
            )
            return Translation(prompt, _Sent(), Unnamed.REFUSED)
        return Translation(Close(session_id=asked.session_id), self.responder)
