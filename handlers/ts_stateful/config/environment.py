"""Settings as environment variables with the names of other servers of sessions.

They override model-config.yaml: an archive is made once, but an endpoint is configured at its deployment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ts_stateful.config.schema import ConfigError

__all__ = ["with_environment"]

_ENABLE = "OPTION_ENABLE_STATEFUL_SESSIONS"
_PATH = "OPTION_SESSIONS_PATH"
_EXPIRATION_S = "OPTION_SESSIONS_EXPIRATION"
_TTL_MIN = "SES_TTL_MIN"
_NAMES = (_ENABLE, _PATH, _EXPIRATION_S, _TTL_MIN)
_MAX_DIGITS = 9
_BOOLS = {"true": True, "false": False}


def with_environment(
    document: Mapping[str, Any] | None, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the parsed model-config.yaml with the settings of the environment; an empty variable sets nothing.

    Raises:
        ConfigError: a variable has an invalid value, or two of them contradict each other.
    """
    given = {name: value for name in _NAMES if (value := environ.get(name, "").strip())}
    document = dict(document or {})
    lifetime_ms = _lifetime_ms(given)
    if lifetime_ms is not None:
        # Neither limit ends a session earlier, used or not.
        document["sequenceTimeoutMSec"] = document["sequenceMaxIdleMSec"] = lifetime_ms
    handler = document.get("handler") or {}
    if not (_ENABLE in given or _PATH in given) or not isinstance(handler, Mapping):
        return document
    handler = dict(handler)
    if _ENABLE in given:
        handler["statefulSessions"] = _bool(given[_ENABLE])
    if _PATH in given:
        store = handler.get("store")
        others = store if isinstance(store, Mapping) else {}
        handler["store"] = {**others, "url": _folder(given[_PATH]).as_uri()}
    if "states" in handler:
        _check_states(given, handler)
    return {**document, "handler": handler}


def _check_states(given: Mapping[str, str], handler: dict[str, Any]) -> None:
    """Refuse to end the sessions of a model with recurrent state, or to move them out of memory."""
    if _PATH in given:
        raise ConfigError(
            f"{_PATH}: a model with recurrent state keeps its sessions in memory; unset it"
        )
    if not handler.pop("statefulSessions", True):
        raise ConfigError(f"{_ENABLE}: a model with recurrent state needs sessions; unset it")


def _lifetime_ms(given: Mapping[str, str]) -> int | None:
    asked = {
        name: _count(name, given[name]) * unit_ms
        for name, unit_ms in ((_EXPIRATION_S, 1000), (_TTL_MIN, 60_000))
        if name in given
    }
    if len(set(asked.values())) > 1:
        raise ConfigError(f"{_EXPIRATION_S} and {_TTL_MIN} are different times; set only one")
    return next(iter(asked.values()), None)


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0):
        raise ConfigError(f"{name} must be a whole number above 0, not {text[:40]!r}")
    return int(text)


def _bool(text: str) -> bool:
    if text.lower() not in _BOOLS:
        raise ConfigError(f"{_ENABLE} must be true or false, not {text[:40]!r}")
    return _BOOLS[text.lower()]


def _folder(text: str) -> Path:
    folder = Path(text)
    if not folder.is_absolute():
        raise ConfigError(f"{_PATH} must be an absolute path, not {text[:200]!r}")
    return folder
