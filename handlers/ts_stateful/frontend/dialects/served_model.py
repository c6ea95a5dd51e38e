"""The name of the served model in requests of OpenAI's clients, and the errors about names that do not exist."""

from __future__ import annotations

from typing import Any

from ts_stateful.protocol.errors import InvalidRequest, StatefulError

__all__ = ["ServedModelName", "UnknownPath"]


class UnknownPath(StatefulError):
    """There is nothing at this path."""

    code, status = "unknown_url", 404


class _UnknownModel(StatefulError):
    code, status = "model_not_found", 404


class ServedModelName:
    """The `name` of the model that a server has."""

    def __init__(self, name: str) -> None:
        self.name = name

    def taken_from(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the fields beside the model, which may be missing: SageMaker's clients send an empty one.

        Raises:
            StatefulError: it names another model.
        """
        rest = dict(document)
        self.check(rest.pop("model", None) or self.name)
        return rest

    def check(self, name: object) -> None:
        """Check the name of a model. Raises as `taken_from` does."""
        if not isinstance(name, str):
            raise InvalidRequest("expected `str`", field="model")
        if name != self.name:
            message = f"The model `{name[:64]}` does not exist; this is `{self.name}`"
            raise _UnknownModel(message, field="model")
