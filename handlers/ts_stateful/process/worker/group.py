"""Groups of registrations that share their engines: `handler.engineGroup`.

The members of a group must agree about their terms, which are in a file. Each member holds a lock on it. The kernel releases
the lock when the member's worker dies. A member that finds no other one sets the terms.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ts_stateful.config.schema import Config, ConfigError
from ts_stateful.process.archive import content_digest
from ts_stateful.process.spec import group_file

__all__ = ["Membership", "terms_of"]

_FILES = "files of the archive"


def terms_of(config: Config, model_dir: Path) -> dict[str, Any]:
    """Return the settings that concern engines and sessions, by key, including defaults."""
    frontend = config.frontend
    handler = dict(_flat("handler", msgspec.to_builtins(config.engine)))
    del handler["handler.engineGroup"]
    terms = {
        "maxNumSequence": frontend.max_sessions,
        "sequenceMaxIdleMSec": round(1000 * frontend.idle_s),
        "sequenceTimeoutMSec": round(1000 * frontend.lifetime_s),
        "maxSequenceJobQueueSize": frontend.max_sequence_job_queue_size,
        **handler,
        _FILES: content_digest(model_dir),
    }
    decoded: dict[str, Any] = json.loads(json.dumps(terms, sort_keys=True))  # as from a file
    return decoded


class Membership:
    """The membership of one worker in the group `name` of a TorchServe, until `leave` or the end of the process.

    Raises:
        ConfigError: another member has other terms; the message names the keys.
    """

    def __init__(self, frontend_pid: int, name: str, terms: Mapping[str, Any]) -> None:
        self.identity = ("group", name, dict(terms))  # of the engines
        path = group_file(frontend_pid, name)
        path.touch(mode=0o600)
        self._file = path.open("r+", encoding="utf-8")
        try:
            self._agree(name, terms)
        except BaseException:
            self.leave()
            raise

    def _agree(self, name: str, terms: Mapping[str, Any]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            self._file.truncate()
            json.dump(terms, self._file)
            self._file.flush()
        # Another member may set its terms just before this lock; they are compared like those of any member.
        fcntl.flock(self._file, fcntl.LOCK_SH)
        self._file.seek(0)
        theirs = json.load(self._file)
        keys = [key for key in sorted({*terms, *theirs}) if terms.get(key) != theirs.get(key)]
        if keys:
            differences = "; ".join(
                _difference(key, theirs.get(key), terms.get(key)) for key in keys
            )
            raise ConfigError(
                f"model-config.yaml: handler.engineGroup: another registration of the group {name} differs in {differences};"
                " make them agree, or use another group"
            )

    def leave(self) -> None:
        """Leave the group; the next first member may set other terms."""
        self._file.close()


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, value


def _difference(key: str, theirs: Any, ours: Any) -> str:
    return key if key == _FILES else f"{key} ({theirs} there, {ours} here)"
