"""OpenAI's chat completions: `v1/chat/completions` and `v1/models` behind the model's own path, or the same bodies without.

Owns which requests these are and which model they may ask for. A client keeps the conversation itself: with a session header
it is compared with what the session holds, and without one every request stands alone.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from ts_stateful.frontend.dialects.dialect import Letter, Translation, Unnamed
from ts_stateful.frontend.dialects.openai_request import read_completion
from ts_stateful.frontend.dialects.openai_responder import CompletionVoice, OpenAiVoice
from ts_stateful.frontend.dialects.own import OwnVoice
from ts_stateful.frontend.dialects.responder import line_of
from ts_stateful.protocol.errors import InvalidRequest, StatefulError

__all__ = ["OpenAi"]

_CHAT = "v1/chat/completions"
_MODELS = "v1/models"


class _NoSuch(StatefulError):
    """Something that is not there, in OpenAI's words."""

    status = 404

    def __init__(self, code: str, message: str, *, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.code = code  # type: ignore[misc]  # OpenAI has one for each kind of thing


class OpenAi:
    """The dialect of OpenAI's clients, for the model that TorchServe serves as `model_name`."""

    voice = OpenAiVoice()

    def __init__(self, model_name: str) -> None:
        self._model = {
            "id": model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "torchserve-stateful",
        }

    def speaks(self, letter: Letter) -> bool:
        """See `Dialect`; the path tells, or else the body."""
        if letter.headers.path.strip("/").startswith("v1/"):
            return True
        document = letter.document
        return "messages" in document and not {"type", "prompt"} & document.keys()

    def read(self, letter: Letter) -> Translation:
        """See `Dialect`."""
        path = letter.headers.path.strip("/")
        if path == _MODELS:
            return self._direct({"object": "list", "data": [self._model]})
        if path.startswith(f"{_MODELS}/"):
            self._check_model(path.removeprefix(f"{_MODELS}/"))
            return self._direct(self._model)
        if path.startswith("v1/") and path != _CHAT:
            raise _NoSuch("unknown_url", f"there is {_CHAT} here, and {_MODELS}")
        return self._completion(letter)

    def _completion(self, letter: Letter) -> Translation:
        document = dict(letter.document)
        session_id = document.pop("session_id", None)
        if session_id is not None and not isinstance(session_id, str):
            raise InvalidRequest("expected `str`", field="session_id")
        if not isinstance(document.get("model"), str):
            raise InvalidRequest("you must provide a model parameter", field="model")
        asked = read_completion(document)
        self._check_model(asked.model)
        voice = CompletionVoice(
            asked.model, include_usage=asked.include_usage, image_fields=asked.image_fields
        )
        named = letter.headers.names_session or session_id is not None
        return Translation(
            replace(asked.chat, session_id=session_id),
            voice,
            Unnamed.OPENS if named else Unnamed.ALONE,
        )

    def _check_model(self, name: str) -> None:
        if name != self._model["id"]:
            message = f"The model `{name[:64]}` does not exist; this is `{self._model['id']}`"
            raise _NoSuch("model_not_found", message, field="model")

    def _direct(self, document: dict[str, object]) -> Translation:
        return Translation(None, OwnVoice(), answer=line_of(document))
