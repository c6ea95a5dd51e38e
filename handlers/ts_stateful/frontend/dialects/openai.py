"""OpenAI's `v1/chat/completions`, `v1/completions` and `v1/models` after the model's own path, or bodies of chats without.

A client keeps the conversation itself. With a session header it is compared with the session's history. Without one every
request is independent.
"""

from __future__ import annotations

import time

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
from ts_stateful.frontend.dialects.served_model import (
    ServedModelName,
    UnknownPath,
    split_deployment,
)
from ts_stateful.frontend.parsing.body import RequestBody
from ts_stateful.protocol.errors import InvalidRequest

__all__ = ["OpenAi"]

_CHAT = "v1/chat/completions"
_TEXT = "v1/completions"
_MODELS = "v1/models"


class OpenAi:
    """The dialect of OpenAI's clients, for the `served` model and its adapters."""

    responder = OpenAiResponder()

    def __init__(self, served: ServedModelName, *, strict: bool = False) -> None:
        self._served = served
        self._strict = strict
        self._created = int(time.time())

    def matches(self, body: RequestBody) -> bool:
        """See `Dialect`; the path decides, or else the body."""
        if body.headers.is_openai:
            return True
        document = body.document
        return "messages" in document and not {"type", "prompt"} & document.keys()

    def read(self, body: RequestBody) -> Translation:
        """See `Dialect`."""
        if body.headers.is_tagged:
            raise InvalidRequest(
                "this WebSocket takes no `messages`: POST them to /v1/chat/completions, or send a `prompt` here",
                field="messages",
            )
        path, deployment = split_deployment(body.headers.path.strip("/"))
        if path == _MODELS:
            names = [self._served.name, *self._served.adapters]
            return self._direct({"object": "list", "data": list(map(self._model, names))})
        if path.startswith(f"{_MODELS}/"):
            name = path.removeprefix(f"{_MODELS}/")
            self._served.check(name)
            return self._direct(self._model(name))
        if path == _TEXT:
            return self._text(body, deployment)
        if body.headers.is_openai and path != _CHAT:
            raise UnknownPath(
                f"unknown path; this server has {_CHAT}, {_TEXT}, {_MODELS}, v1/responses and v1/conversations"
            )
        return self._chat(body, deployment)

    def _text(self, body: RequestBody, deployment: str | None) -> Translation:
        """Translate a request that stands alone, as there are no messages to compare with a session's."""
        document, model = self._served.taken_from(body.document, deployment)
        asked = read_text(document, model, strict=self._strict)
        if body.headers.session_id() is not None:
            raise InvalidRequest(
                "a text completion has no session; leave the session header out, or use chat completions",
                field="session_id",
            )
        return Translation(
            replace(asked.prompt, adapter=self._served.adapter(model)),
            TextResponder(asked),
            Unnamed.EPHEMERAL,
            ignored=asked.ignored,
            choices=asked.choices,
        )

    def _chat(self, body: RequestBody, deployment: str | None) -> Translation:
        document, model = self._served.taken_from(body.document, deployment)
        session_id = document.pop("session_id", None)
        if session_id is not None and not isinstance(session_id, str):
            raise InvalidRequest("expected `str`", field="session_id")
        asked = read_chat(document, model, strict=self._strict)
        responder = ChatResponder(asked)
        named = body.headers.names_session or session_id is not None
        return Translation(
            replace(asked.prompt, session_id=session_id, adapter=self._served.adapter(model)),
            responder,
            Unnamed.OPENS if named else Unnamed.EPHEMERAL,
            ignored=asked.ignored,
            choices=asked.choices,
        )

    def _model(self, name: str) -> dict[str, object]:
        parent = {} if self._served.adapter(name) is None else {"parent": self._served.name}
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "torchserve-stateful",
            **parent,
        }

    def _direct(self, document: dict[str, object]) -> Translation:
        return Translation(None, OwnResponder(), answer=line_of(document))
