"""The typed errors in answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from ts_stateful.protocol.errors import StatefulError

__all__ = ["error_classes", "error_from_body"]


def error_classes() -> dict[str, type[StatefulError]]:
    """Return the classes that have a code, by their codes."""

    def walk(cls: type[StatefulError]) -> Iterator[type[StatefulError]]:
        yield cls
        for child in cls.__subclasses__():
            yield from walk(child)

    return {cls.code: cls for cls in walk(StatefulError) if cls.code}


def error_from_body(body: Mapping[str, Any]) -> StatefulError | None:
    """Return the typed error in an answer, or None if the answer is not an error.

    An unknown code, of a newer server, becomes a plain `StatefulError` with the code in its message.
    """
    error = body.get("error")
    if not isinstance(error, Mapping):
        return None
    code, message = str(error.get("code", "")), str(error.get("message", ""))
    cls = error_classes().get(code)
    if cls is None:
        cls, message = StatefulError, f"{code}: {message}"
    field, retry_after_s = error.get("field"), error.get("retry_after_s")
    return cls(
        message,
        field=field if isinstance(field, str) else None,
        retry_after_s=retry_after_s if _is_duration(retry_after_s) else None,
    )


def _is_duration(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0
