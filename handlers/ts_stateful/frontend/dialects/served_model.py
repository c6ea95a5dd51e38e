"""The name of the served model in requests of OpenAI's clients, and the errors about names that do not exist."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ts_stateful.protocol.errors import InvalidRequest, ModelNotFound, StatefulError

__all__ = ["ServedModelName", "UnknownPath", "split_deployment"]

_DEPLOYMENT = re.compile(r"(v1/)deployments/([^/]+)/(.+)")


class UnknownPath(StatefulError):
    """There is nothing at this path."""

    code, status = "unknown_url", 404


def split_deployment(path: str) -> tuple[str, str | None]:
    """Return a path of OpenAI's API, and the model that Azure's clients name within it."""
    found = _DEPLOYMENT.fullmatch(path)
    return (path, None) if found is None else (found[1] + found[3], found[2])


class ServedModelName:
    """The `name` of the model that a server has, and those of its `adapters`, which clients see as models."""

    def __init__(self, name: str, adapters: Collection[str] = ()) -> None:
        self.name = name
        self.adapters = adapters

    def taken_from(
        self, document: dict[str, Any], deployment: str | None = None
    ) -> tuple[dict[str, Any], str]:
        """Return the fields beside the model, and its name. It may be missing: SageMaker's clients send an empty one.

        The path's `deployment` takes precedence.

        Raises:
            StatefulError: it names another model.
        """
        rest = dict(document)
        named = rest.pop("model", None)
        name = deployment or (self.name if named in (None, "") else named)
        self.check(name)
        return rest, name

    def adapter(self, name: str) -> str | None:
        """Return the adapter that has this name; None for the model itself."""
        return None if name == self.name else name

    def check(self, name: object) -> None:
        """Check the name of a model. Raises as `taken_from` does."""
        if not isinstance(name, str):
            raise InvalidRequest("expected `str`", field="model")
        if name != self.name and name not in self.adapters:
            names = "`, `".join([self.name, *self.adapters])
            message = f"The model `{name[:64]}` does not exist; this is `{names}`"
            raise ModelNotFound(message, field="model")
