"""The settings of a TorchServe that runs on this machine, as far as the watch over it needs them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import psutil

from ts_stateful.client.management import Management

__all__ = ["KEY_FILE", "management_of", "read_key", "read_properties"]

KEY_FILE = "key_file.json"
_ADDRESS = "management_address"
_DEFAULT_URL = "http://127.0.0.1:8081"
_ANY_HOST = ("//0.0.0.0", "//[::]")


def management_of(server: psutil.Process) -> Management:
    """Connect to the management API of a TorchServe process.

    Raises:
        psutil.Error: the process has exited.
        ValueError: the API has no HTTP URL; it may listen on a Unix socket.
    """
    folder, environ = Path(server.cwd()), server.environ()
    settings = read_properties(_config_file(server.cmdline(), environ, folder))
    url = settings.get(_ADDRESS, _DEFAULT_URL)
    if settings.get("enable_envvars_config", "").lower() == "true":
        url = environ.get("TS_MANAGEMENT_ADDRESS", url)
    for host in _ANY_HOST:
        url = url.replace(host, "//127.0.0.1")
    return Management(url, token=lambda: read_key(folder, "management"), started=True)


def read_key(folder: Path, kind: str) -> str | None:
    """Return a key that TorchServe wrote into its working directory; None without token authorization.

    The `kind` is "management" or "inference", an API of TorchServe.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / KEY_FILE).read_text())[kind]["key"])
    return None


def read_properties(path: Path | None) -> dict[str, str]:
    """Return the settings of a config.properties by name; none if it cannot be read."""
    settings = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines() if path is not None else ():
            name, equals, value = line.strip().partition("=")
            if equals and not name.startswith("#"):
                settings[name.strip()] = value.strip()
    return settings


def _config_file(command: list[str], environ: Mapping[str, str], folder: Path) -> Path | None:
    """Find the file that TorchServe's Java reads; the variable takes precedence over the option."""
    name = environ.get("TS_CONFIG_FILE")
    if name is None and "-f" in command[:-1]:
        name = command[command.index("-f") + 1]
    return None if name is None else folder / name
