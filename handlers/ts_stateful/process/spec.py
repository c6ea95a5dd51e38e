"""What an engine process is started with, and where it can be found.

Owns the runtime folder and the files in it. Knows nothing of what an engine does.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["EngineSpec", "forget_groups", "group_file", "runtime_folder"]

_MAX_SOCKET_PATH = 100  # of the 108 bytes that the kernel allows


class EngineSpec(Struct, frozen=True, kw_only=True):
    """One engine process: number `index` on `device`, for the model unpacked in `model_dir`, which it calls `model_name`.

    `document` is the parsed model-config.yaml. The engine ends when the process `frontend_pid` (TorchServe) does. `shared` says
    that workers of several registrations may use it; `model_name` is then that of the group.
    """

    index: int
    device: str
    model_name: str
    model_dir: str
    frontend_pid: int
    folder: str
    max_sessions: int
    document: dict[str, Any]
    shared: bool = False

    @property
    def archive(self) -> str | None:
        """Where that of the one registration is which uses the engine; None if there may be several."""
        return None if self.shared else self.model_dir

    def path(self, suffix: str) -> Path:
        """One of the engine's files: `sock`, `lock`, `json`, `log`, or one of `gate`."""
        return Path(self.folder) / f"engine-{self.index}.{suffix}"

    def save(self) -> Path:
        """Writes it where the engine process reads it; only this user can."""
        path = self.path("json")
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self))
        return path

    @classmethod
    def load(cls, path: Path) -> EngineSpec:
        """Reads what `save` has written."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def runtime_folder(frontend_pid: int, *identity: object) -> Path:
    """The private folder (mode 0700) of the engines of one model of one TorchServe.

    `identity` is everything that makes an engine unusable for another configuration. `TS_STATEFUL_RUNTIME_DIR` moves the
    folders away from the system's temporary one.

    Raises:
        RuntimeError: the folder belongs to somebody else, or its path is too long for a socket.
    """
    folder = _home() / f"{frontend_pid}-{_digest(identity)}"
    _make_private(folder)
    if len(str(folder / "engine-00.sock")) > _MAX_SOCKET_PATH:
        raise RuntimeError(f"{folder} is too long for a socket; set TS_STATEFUL_RUNTIME_DIR")
    return folder


def group_file(frontend_pid: int, name: str) -> Path:
    """Where the members of a group of one TorchServe find each other. Raises as `runtime_folder` does."""
    return _home() / f"{frontend_pid}-{_digest(name)}.group"


def forget_groups(folder: Path, frontend_pid: int) -> None:
    """Removes such files beside an engine's folder when TorchServe has gone."""
    for path in folder.parent.glob(f"{frontend_pid}-*.group"):
        path.unlink(missing_ok=True)


def _home() -> Path:
    base = os.environ.get("TS_STATEFUL_RUNTIME_DIR") or tempfile.gettempdir()
    home = Path(base) / f"ts-stateful-{os.getuid()}"
    _make_private(home)
    return home


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise RuntimeError(f"{folder} is not a folder of this user; remove it")
    folder.chmod(0o700)


def _digest(identity: object) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
