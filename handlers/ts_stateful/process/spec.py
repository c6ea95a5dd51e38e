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

__all__ = ["EngineSpec", "runtime_folder"]

_MAX_SOCKET_PATH = 100  # of the 108 bytes that the kernel allows


class EngineSpec(Struct, frozen=True, kw_only=True):
    """One engine process: number `index` on `device`, for the model `model_name` unpacked in `model_dir`.

    `document` is the parsed model-config.yaml. The engine ends when the process `frontend_pid` (TorchServe) does.
    """

    index: int
    device: str
    model_name: str
    model_dir: str
    frontend_pid: int
    folder: str
    max_sessions: int
    document: dict[str, Any]

    def path(self, suffix: str) -> Path:
        """One of the engine's files: `sock`, `lock`, `json` or `log`."""
        return Path(self.folder) / f"engine-{self.index}.{suffix}"

    def save(self) -> Path:
        """Writes it where the engine process reads it; only this user can."""
        path = self.path("json")
        path.write_bytes(msgspec.json.encode(self))
        path.chmod(0o600)
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
    base = os.environ.get("TS_STATEFUL_RUNTIME_DIR") or tempfile.gettempdir()
    home = Path(base) / f"ts-stateful-{os.getuid()}"
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    folder = home / f"{frontend_pid}-{digest}"
    for path in (home, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
            raise RuntimeError(f"{path} is not a folder of this user; remove it")
        path.chmod(0o700)
    if len(str(folder / "engine-00.sock")) > _MAX_SOCKET_PATH:
        raise RuntimeError(f"{folder} is too long for a socket; set TS_STATEFUL_RUNTIME_DIR")
    return folder
