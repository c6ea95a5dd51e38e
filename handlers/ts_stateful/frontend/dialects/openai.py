"""OpenAI's `v1/chat/completions`, `v1/completions` and `v1/models` after the model's own path, or bodies of chats without.

A client keeps the conversation itself. With a session header it is compared with the session's history. Without one every
request is independent.
"""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from ts_stateful.frontend.dialects.dialect import Translation, Unnamed
from ts_stateful.frontend.dialects.openai_request import read_chat, read_text
from ts_stateful.frontend.dialects.openai_responder import (
    ChatResponder,
    OpenAiResponder,
    TextResponder,
)
from ts_stateful.frontend.dialects.own import OwnResponder
from ts_stateful.frontend.dialects.responder import line_of
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.protocol.errors import InvalidRequest, StatefulError

__all__ = ["OpenAi"]

_CHAT = "v1/chat/completions"
_TEXT = "v1/completions"
_MODELS = "v1/models"


class _NoSuch(StatefulError):
    """A path or model that does not exist; `code` is OpenAI's."""

    status = 404

    def __init__(self, code: str, message: str, *, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.code = code  # type: ignore[misc]  # OpenAI has one for each kind


class OpenAi:
    """The dialect of OpenAI's clients, for the model that TorchServe serves as `model_name`."""

    responder = OpenAiResponder()

    def __init__(self, model_name: str, *, strict: bool = False) -> None:
        self._name = model_name
        self._strict = strict
        self._model = {
            "id": model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "torchserve-stateful",
        }

    def matches(self, body: RequestBody) -> bool:
        """See `Dialect`; the path decides, or else the body."""
        if body.headers.path.strip("/").startswith("v1/"):
            return True
        document = body.document
        return "messages" in document and not {"type", "prompt"} & document.keys()

    def read(self, body: RequestBody) -> Translation:
        """See `Dialect`."""
        path = body.headers.path.strip("/")
        if path == _MODELS:
            return self._direct({"object": "list", "data": [self._model]})
        if path.startswith(f"{_MODELS}/"):
            self._check_model(path.removeprefix(f"{_MODELS}/"))
            return self._direct(self._model)
        if path == _TEXT:
            return self._text(body)
        if path.startswith("v1/") and path != _CHAT:
            raise _NoSuch(
                "unknown_url", f"unknown path; this server has {_CHAT}, {_TEXT} and {_MODELS}"
            )
        return self._chat(body)

    def _text(self, body: RequestBody) -> Translation:
        """Translate a request that stands alone, as there are no messages to compare with a session's."""
        asked = read_text(self._document(body), self._name, strict=self._strict)
        if body.headers.session_id() is not None:
            raise InvalidRequest(
                "a text completion has no session; leave the session header out, or use chat completions",
                field="session_id",
            )
        return Translation(
            asked.prompt,
            TextResponder(asked),
            Unnamed.EPHEMERAL,
            ignored=asked.ignored,
            choices=asked.choices,
        )

    def _chat(self, body: RequestBody) -> Translation:
        document = self._document(body)
        session_id = document.pop("session_id", None)
        if session_id is not None and not isinstance(session_id, str):
            raise InvalidRequest("expected `str`", field="session_id")
        asked = read_chat(document, self._name, strict=self._strict)
        responder = ChatResponder(asked)
        named = body.headers.names_session or session_id is not None
        return Translation(
            replace(asked.prompt, session_id=session_id),
            responder,
            Unnamed.OPENS if named else Unnamed.EPHEMERAL,
            ignored=asked.ignored,
            choices=asked.choices,
        )

    def _document(self, body: RequestBody) -> dict[str, Any]:
        """Return the fields beside the model, which may be missing: SageMaker's clients send an empty one."""
        document = dict(body.document)
        self._check_model(document.pop("model", None) or self._name)
        return document

    def _check_model(self, name: object) -> None:
        if not isinstance(name, str):
            raise InvalidRequest("expected `str`", field="model")
        if name != self._name:
            message = f"The model `{name[:64]}` does not exist; this is `{self._name}`"
            raise _NoSuch("model_not_found", message, field="model")

    def _direct(self, document: dict[str, object]) -> Translation:
        return Translation(None, OwnResponder(), answer=line_of(document))
