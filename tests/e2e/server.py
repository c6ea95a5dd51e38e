"""The end-to-end tests' servers: one TorchServe per profile, packed and started as users do it."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support.ports import free_ports
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.cli.main import main
from ts_stateful.process.drain import descendants
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings

__all__ = [
    "ENDLESS",
    "ROOT",
    "SHAPES_MODEL",
    "START_TIMEOUT_S",
    "WINDOW",
    "KilledTorchServe",
    "endless_model",
    "log_path",
    "pack",
    "profile_server",
]

ROOT = Path(__file__).resolve().parent.parent.parent

SHAPES_MODEL = ROOT / "examples" / "shapes" / "model"
# On a busy machine; within the time limit of the first test that asks for a server.
START_TIMEOUT_S = 240.0
# Tokens that fit into a session of a server with `endless` turns, and a prompt whose turn fills it: no machine comes to its end
# while a test looks at it.
WINDOW = 100_000
ENDLESS: Mapping[str, Any] = {
    "prompt": "What color is the circle?",
    "max_new_tokens": WINDOW,
    "ignore_eos": True,
}

# Seconds for a worker or an engine to be back, and for a store to answer, on a machine that is busy with other tests.
_PATIENT = {"engineLingerSec": 240, "restartDeadlineSec": 180}
_PATIENT_STORE = {"timeoutSec": 60}
_RESPONSE_TIMEOUT_S = 240


def pack(output: Path, *arguments: str, model: Path | str | None = SHAPES_MODEL) -> Path:
    """Packs as archive.sh does, in this process, which has imported most of it; returns the archive.

    Without a model the arguments say what is packed.
    """
    named = [] if model is None else [str(model)]
    config = str(ROOT / "model-config.yaml")
    options = ["pack", *named, "--config", config, "--output", str(output), *arguments]
    path, complaints = io.StringIO(), io.StringIO()
    with redirect_stdout(path), redirect_stderr(complaints):
        status = main(options)
    assert status == 0, f"ts-stateful pack: {complaints.getvalue()}"
    return Path(path.getvalue().splitlines()[-1])


def log_path(name: str) -> Path:
    """Where the log of a server is kept after the tests."""
    return ROOT / "build" / "test-logs" / f"{name}.log"


def profile_server(
    profile: Profile,
    folder: Path,
    *,
    name: str | None = None,
    endless: bool = False,
    handler: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    watch: bool = True,
    admin_port: int | None = None,
    model: Path = SHAPES_MODEL,
    **keys: Any,
) -> LocalServer:
    """A server for a model, by default the shapes model, on free ports, not started yet; TorchServe, or the front without it.

    Args:
        folder: an empty folder for the archive.
        name: of the log; the profile's where several tests share the server.
        endless: whether sessions have room for `ENDLESS`.
        handler: settings under `handler` that differ from the repository's model-config.yaml.
        environ: variables for TorchServe on top of the tests' own.
        watch: whether workers that TorchServe loses are replaced.
        admin_port: of the administration, without TorchServe.
        model: the folder of the model.
        keys: settings beside `handler` that differ.
    """
    document = yaml.safe_load((ROOT / "model-config.yaml").read_text())
    own = {**document["handler"], **_PATIENT, **(handler or {})}
    own["store"] = {**_PATIENT_STORE, **own.get("store", {})}
    document |= {"responseTimeout": _RESPONSE_TIMEOUT_S, **keys, "handler": own}
    config = folder / "model-config.yaml"
    config.write_text(yaml.safe_dump(document))
    kind = Profile.CONTINUOUS if profile is Profile.ASGI else profile
    options = ["--profile", kind.value, "--config", str(config)]
    model = endless_model(folder / "model") if endless else model
    archive = pack(folder / "archive", *options, model=model)
    log = log_path(name or profile.value)
    log.unlink(missing_ok=True)
    if profile is Profile.ASGI:
        asgi = AsgiServerSettings(
            (str(archive),),
            ports=free_ports(),
            log_file=log,
            environ=environ or {},
            start_timeout_s=START_TIMEOUT_S,
            admin_port=admin_port,
        )
        return AsgiServer(asgi)
    settings = TorchServeSettings(
        archive,
        ports=free_ports(),
        config=ROOT / "config.properties",
        log_config=ROOT / "log4j2.xml",
        log_file=log,
        environ=environ or {},
        start_timeout_s=START_TIMEOUT_S,
        watch=watch,
    )
    return KilledTorchServe(settings)


class KilledTorchServe(TorchServe):
    """TorchServe that is killed at the end of its block: to let it finish takes seconds, and has tests of its own."""

    def __exit__(self, *_: object) -> None:
        if self._home is not None:
            for process in descendants("TMPDIR", str(self._home / "tmp")):
                with suppress(psutil.Error):
                    process.kill()
        self.stop()


def endless_model(folder: Path) -> Path:
    """The model with a wider window, of which its weights know nothing."""
    shutil.copytree(SHAPES_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = WINDOW
    (folder / "config.json").write_text(json.dumps(config))
    return folder
