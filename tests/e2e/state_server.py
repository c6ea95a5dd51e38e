"""One TorchServe for all models with recurrent state: each is packed and registered when a test first asks for it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from _pytest.mark import ParameterSet
from safetensors.torch import save_file
from torch import tensor

from tests.e2e.server import ROOT, START_TIMEOUT_S, KilledTorchServe, log_path, pack
from tests.support.ports import free_ports
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.process.spec import EngineSpec
from ts_stateful.torchserve.server import TorchServeSettings

__all__ = ["BALANCE", "AsgiStateModels", "StateModels", "at"]

MODELS = ROOT / "tests" / "support" / "state_models"
EXAMPLES = ROOT / "examples"
BALANCE = 1000  # what the account of every sequence of `ledger` begins with; it comes from a file

# The frontend of TorchServe itself has only two places for sequences. It forgets one that was idle for longer than a busy
# machine takes from one step to the next.
_NARROW: dict[str, Any] = {"batchSize": 3, "maxNumSequence": 2, "sequenceMaxIdleMSec": 10_000}
# Every id that was ever used keeps a place in TorchServe's sequence batch until it is idle for long enough.
_WIDE: dict[str, Any] = {"batchSize": 193, "maxNumSequence": 192, "maxBatchDelay": 5}
_ASGI = ("ledger", "meter", "counter", "ledger-queued")


def at(server: str, value: str) -> ParameterSet:
    """A parameter by which a test asks for `state_models` or `asgi_state_models`: it runs with the others that do."""
    return pytest.param(value, marks=pytest.mark.xdist_group(server))


class StateModels:
    """The models under `tests/support/state_models` and `examples`, in the profiles that tests want them in.

    A context manager: entering starts TorchServe with the counter of the examples.
    """

    def __init__(self, folder: Path) -> None:
        self.gate = folder / "gate"  # see `Ledger`
        self.held = folder / "gate.held"
        self._folder = folder
        self._store = folder / "store"
        self._archives: dict[str, Path] = {}
        self._registered = {"counter"}
        log = log_path("state")
        log.unlink(missing_ok=True)
        self.server = KilledTorchServe(
            TorchServeSettings(
                self.pack("counter"),
                config=ROOT / "config.properties",
                log_config=ROOT / "log4j2.xml",
                name="counter",
                ports=free_ports(),
                log_file=log,
                environ={"TS_ENABLE_MODEL_API": "true"},
                start_timeout_s=START_TIMEOUT_S,
            )
        )

    def __enter__(self) -> StateModels:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.unlink(missing_ok=True)
        self.server.__exit__()

    def named(self, name: str) -> str:
        """The model of that name, which is served from now on: `ledger-sequence` is `ledger` in the sequence profile."""
        if name not in self._registered:
            self.pack(name)
            answer = httpx.post(
                f"{self.server.management_url}/models",
                params={"url": f"{name}.mar", "initial_workers": 1, "synchronous": "true"},
                timeout=START_TIMEOUT_S,
                trust_env=False,
            )
            assert answer.status_code == 200, f"{answer.text}\n{self.server.log_tail()}"
            self._registered.add(name)
        return name

    def pack(self, name: str) -> Path:
        """The archive of a model, in the model store, which is packed once."""
        if name not in self._archives:
            self._archives[name] = self._pack(name)
        return self._archives[name]

    def _pack(self, name: str) -> Path:
        model, _, variant = name.partition("-")
        folder = self._folder / name
        if model not in ("ledger", "meter"):
            if variant != "kept":
                return self._packed(name, EXAMPLES / model)
            shutil.copytree(EXAMPLES / model / "model", folder / "model")
            document = yaml.safe_load((EXAMPLES / model / "model-config.yaml").read_text())
            self._keep(document)
            (folder / "model-config.yaml").write_text(yaml.safe_dump(document))
            return self._packed(name, folder)
        document = yaml.safe_load((MODELS / f"{model}.yaml").read_text())
        (folder / "model").mkdir(parents=True)
        shutil.copy(MODELS / f"{model}.py", folder / "model")
        if model == "ledger":
            document["handler"]["arguments"] = {"gate": str(self.gate)}
            save_file({"balance": tensor([BALANCE])}, folder / "model" / "initial.safetensors")
        if variant == "narrow":
            document |= {"sequenceBatching": True, **_NARROW}
        elif variant == "sequence":
            document |= {"sequenceBatching": True, **_WIDE}
        elif variant == "kept":
            document |= {"sequenceBatching": True, **_WIDE}
            self._keep(document)
        elif variant == "queued":
            document |= {"continuousBatching": True, "maxNumSequence": 1}
            document["handler"] |= {"maxQueuedSequences": 2, "queuedSequenceSec": 240}
        elif variant:
            document |= {"batchSize": 1, "asyncCommunication": True}
        else:
            document |= {"continuousBatching": True}
        (folder / "model-config.yaml").write_text(yaml.safe_dump(document))
        return self._packed(name, folder)

    def kill_engine(self, name: str) -> None:
        """Ends the engine process of one model, as the kernel would."""
        for process in self.server.engines():
            files = [Path(file.path) for file in process.open_files()]
            (lock,) = [file for file in files if file.suffix == ".lock"]
            if EngineSpec.load(lock.with_suffix(".json")).model_name == name:
                process.kill()

    def worker_pid(self, name: str) -> int:
        """The process of TorchServe's worker for one model."""
        url = f"{self.server.management_url}/models/{name}"
        answer = httpx.get(url, timeout=START_TIMEOUT_S, trust_env=False)
        ((worker,),) = [description["workers"] for description in answer.json()]
        return int(worker["pid"])

    def _keep(self, document: dict[str, Any]) -> None:
        """Has the sequences of a model written to a store."""
        folder = self._folder / "sequences"
        document["handler"] |= {
            "commitEvery": 3,
            "store": {"url": folder.as_uri(), "timeoutSec": 60},
        }

    def _packed(self, name: str, folder: Path) -> Path:
        config, files = folder / "model-config.yaml", folder / "model"
        arguments = ["--name", name, "--config", str(config), "--files", str(files)]
        return pack(self._store, *arguments, model=None)


class AsgiStateModels:
    """Some of these models at the front without TorchServe. A context manager."""

    def __init__(self, folder: Path, names: Sequence[str] = _ASGI) -> None:
        models = StateModels(folder)
        self.gate, self.held = models.gate, models.held
        log = log_path("state-asgi")
        log.unlink(missing_ok=True)
        self.server = AsgiServer(
            AsgiServerSettings(
                tuple(str(models.pack(name)) for name in names),
                ports=free_ports(),
                log_file=log,
                environ={},
                start_timeout_s=START_TIMEOUT_S,
            )
        )

    def __enter__(self) -> AsgiStateModels:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.unlink(missing_ok=True)
        self.server.stop()
