"""Edits of a parsed model-config.yaml: another model or profile, and safe values of keys that are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ts_stateful.config.schema import load_config
from ts_stateful.protocol.profile import Profile

__all__ = ["completed", "edited"]

_IDLE_MS = 600_000

# Of TorchServe. With its own defaults it would start a worker per core, wait 100 ms before a batch, and queue little.
_SAFE_KEYS: dict[str, Any] = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "batchSize": 64,
    "maxBatchDelay": 1,
    "jobQueueSize": 1000,
    "responseTimeout": 120,
    "maxNumSequence": 256,
    "maxSequenceJobQueueSize": 8,
}

_PROFILE_KEYS = {
    Profile.CONTINUOUS: "continuousBatching",
    Profile.SEQUENCE: "sequenceBatching",
    Profile.ASYNC: "asyncCommunication",
}


def edited(
    document: Mapping[str, Any], *, model: str | None = None, profile: Profile | None = None
) -> dict[str, Any]:
    """Return a copy for `model` (`handler.model`) and `profile`; None keeps the old value."""
    result = dict(document)
    if model is not None:
        result["handler"] = {**(result.get("handler") or {}), "model": model}
    if profile is not None:
        for key in _PROFILE_KEYS.values():
            result.pop(key, None)
        result[_PROFILE_KEYS[profile]] = True
        result["minWorkers"] = result["maxWorkers"] = 1
    if profile is Profile.ASYNC:
        result["batchSize"] = 1  # a larger batch hangs in this mode
    if profile is Profile.SEQUENCE:
        # Every open session holds a place in the batch; a session without one would wait for ever. One place stays free, or
        # TorchServe's own tasks would have no thread while all sessions are open.
        batch_size = int(result.get("batchSize", 1))
        sessions = min(int(result.get("maxNumSequence") or batch_size), batch_size)
        result["maxNumSequence"], result["batchSize"] = sessions, max(batch_size, sessions + 1)
        result.setdefault("sequenceMaxIdleMSec", _IDLE_MS)
    return result


def completed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy that has every key of TorchServe whose own default would hang or be slow.

    Raises:
        ConfigError: a key or value is wrong.
    """
    config = load_config(document)
    profile, result, safe = config.frontend.profile, dict(document), dict(_SAFE_KEYS)
    if not any(document.get(key) for key in _PROFILE_KEYS.values()):
        result[_PROFILE_KEYS[Profile.CONTINUOUS]] = True
    if profile is Profile.ASYNC:
        safe["batchSize"] = 1
    if profile is Profile.SEQUENCE:  # see `edited`
        places = document.get("batchSize", safe["batchSize"] + 1)
        sessions = document.get("maxNumSequence") or max(1, places - 1)
        safe |= {"maxNumSequence": sessions, "batchSize": sessions + 1}
        safe["sequenceMaxIdleMSec"] = _IDLE_MS
    safe["startupTimeout"] = 2 * math.ceil(config.engine.load_timeout_sec)
    return {**result, **{key: value for key, value in safe.items() if key not in result}}
