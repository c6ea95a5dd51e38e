"""The start parameters of an engine process, and the runtime folder with its files."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ts_stateful.process.private import make_private, user_folder

__all__ = ["STATE_FOLDER", "EngineSpec", "engine_files", "keep_logs", "runtime_folder"]

STATE_FOLDER = "TS_STATEFUL_STATE_DIR"
"""The variable that names a folder for what outlives the server, such as the default store."""


class EngineSpec(Struct, frozen=True, kw_only=True):
    """One engine process: number `index` on `device`, for the model unpacked in `model_dir`.

    If the model is split, `followers` are the devices of its further parts. `document` is the parsed model-config.yaml. The
    engine exits after the process `frontend_pid` (TorchServe).
    """

    index: int
    device: str
    model_name: str
    model_dir: str
    frontend_pid: int
    folder: str
    max_sessions: int
    document: dict[str, Any]
    followers: tuple[str, ...] = ()

    def path(self, suffix: str) -> Path:
        """Return an engine's file: `sock`, `lock`, `json`, `log`, `ranks`, `loading`, or `reason` for why it did not start."""
        return Path(self.folder) / f"engine-{self.index}.{suffix}"

    def save(self) -> Path:
        """Write the spec for the engine process; readable by this user only."""
        path = self.path("json")
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self))
        return path

    @classmethod
    def load(cls, path: Path) -> EngineSpec:
        """Read a file that `save` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def runtime_folder(frontend_pid: int, *identity: object) -> Path:
    """Create and return the private folder (mode 0700) of the engines of one model of one TorchServe.

    An engine is used only by workers with the same `identity`. The folder is in `TS_STATEFUL_RUNTIME_DIR`, by default in the
    system's temporary folder.

    Raises:
        RuntimeError: the folder belongs to another user.
    """
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    return make_private(user_folder() / f"{frontend_pid}-{digest}")


def engine_files(home: Path, suffix: str) -> list[Path]:
    """Find the files of one kind of all engines below the folder of a server: in the user's folder, and a model's.

    Folders beside it are left alone: Java moves them while it unpacks archives.
    """
    return sorted(home.glob(f"tmp/ts-stateful-*/*/engine-*.{suffix}"))


def keep_logs(home: Path, state_folder: Path) -> Path:
    """Copy the logs of engines below `home`, named by their model's digest too, to the folder of what outlives the server."""
    logs = make_private(state_folder / "logs")
    for path in engine_files(home, "log"):
        with contextlib.suppress(OSError):
            shutil.copy(path, logs / f"{path.parent.name.rpartition('-')[2]}-{path.name}")
    return logs
