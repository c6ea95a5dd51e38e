"""The measured servers, packed as users do it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.recurrent import HANDLER
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings

__all__ = [
    "ROOT",
    "asgi",
    "pack_chat",
    "pack_published",
    "pack_recompute",
    "pack_steps",
    "torchserve",
]

ROOT: Final = Path(__file__).resolve().parent.parent
_MAX_SESSIONS = 1024


def pack_chat(
    name: str,
    model: Path,
    folder: Path,
    *,
    profile: str = "continuous",
    dtype: str = "auto",
    threads: int,
) -> None:
    """Pack a checkpoint, with the repository's configuration otherwise."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "model-config.yaml").read_text())
    document["handler"] |= {"model": str(model), "dtype": dtype, "threads": threads}
    document["maxNumSequence"] = _MAX_SESSIONS
    config = _written(document, folder / f"{name}.yaml")
    command = [str(ROOT / "archive.sh"), "--name", name, "--profile", profile]
    _run([*command, "--config", str(config), "--output", str(folder)])


def pack_steps(name: str, model: Path, folder: Path, *, num_sequences: int) -> None:
    """Pack the recurrent model in the folder `model`, in the sequence profile."""
    config = _written(_sequences(num_sequences), folder / f"{name}.yaml")
    command = [str(ROOT / "archive.sh"), "--name", name, "--config", str(config)]
    _run([*command, "--files", str(model), "--output", str(folder)])


def pack_published(name: str, model: Path, folder: Path, *, num_sequences: int) -> None:
    """Pack the baseline of steps, with the same configuration."""
    config = _written(_sequences(num_sequences), folder / f"{name}.yaml")
    _pack(name, config, folder, "--extra-files", str(model))


def pack_recompute(name: str, model: Path, folder: Path, *, threads: int) -> None:
    """Pack the baseline of conversations."""
    document = {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 1,
        "responseTimeout": 600,
        "handler": {"model": str(model), "threads": threads},
    }
    _pack(name, _written(document, folder / f"{name}.yaml"), folder)


def torchserve(name: str, folder: Path) -> TorchServe:
    """Return TorchServe with the archive of that name; not started yet."""
    log_file = folder / f"{name}.log"
    log_file.unlink(missing_ok=True)
    return TorchServe(
        TorchServeSettings(
            folder / f"{name}.mar",
            name=name,
            config=ROOT / "config.properties",
            log_config=ROOT / "log4j2.xml",
            log_file=log_file,
        )
    )


def asgi(name: str, folder: Path) -> AsgiServer:
    """Return the front without TorchServe with the archive of that name; not started yet."""
    archive, log_file = folder / f"{name}.mar", folder / f"{name}-asgi.log"
    return AsgiServer(AsgiServerSettings((str(archive),), name=name, log_file=log_file))


def _sequences(count: int) -> dict[str, Any]:
    """Return the batching of sequences: at most one step of each in a batch, and a place for all of them."""
    return {
        "minWorkers": 1,
        "maxWorkers": 1,
        "sequenceBatching": True,
        "batchSize": count + 1,
        "maxNumSequence": count,
        "maxBatchDelay": 1,
        "sequenceMaxIdleMSec": 600_000,
        "handler": HANDLER,
    }


def _pack(name: str, config: Path, folder: Path, *options: str) -> None:
    """Pack an archive with a handler of the benchmark."""
    packer = "from model_archiver.model_packaging import generate_model_archive as main; main()"
    command = [sys.executable, "-c", packer, "--model-name", name, "--version", "1.0"]
    command += ["--handler", str(ROOT / "benchmarks" / f"{name}_handler.py")]
    command += ["--config-file", str(config), "--export-path", str(folder), "--force"]
    _run([*command, *options])


def _written(document: dict[str, Any], path: Path) -> Path:
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def _run(command: list[str]) -> None:
    environ = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.stderr}")
