"""The tests of TorchServe's stateful examples, unchanged but for the start of their server.

Their server runs a handler of their own, ours the counter, which answers as that does. `cancel` is left out: it tests numbers
that are commands to their handler.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import yaml

from tests.e2e.server import ROOT, START_TIMEOUT_S, KilledTorchServe, log_path, pack
from tests.support.ports import free_ports
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.serving.server import LocalServer
from ts_stateful.torchserve.server import TorchServeSettings

_TESTS = ROOT / "tests" / "data" / "torchserve"
_COUNTER = ROOT / "examples" / "counter"
_NAME = "stateful"  # of the model in their tests
_FASTER = 5  # than their tests, which wait for more than a minute
_IDLE_S, _LIFETIME_S = 30, 60  # in their configuration


class HurriedTime:
    """`time` for their tests. No loop of theirs ends in the last seconds of a session's life."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Sleep for a part of that time."""
        time.sleep(duration_s / _FASTER)

    def time(self) -> float:
        """Return the seconds of their clock."""
        passed_s = _FASTER * (time.monotonic() - self._began)
        if passed_s > _LIFETIME_S - 10:
            self.sleep(max(0.0, _LIFETIME_S + 5 - passed_s))
            return float(_LIFETIME_S + 5)
        return passed_s


@pytest.fixture(scope="module", params=["torchserve", "asgi"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server of the counter under their model's name, with their limits of time."""
    folder = tmp_path_factory.mktemp("examples")
    document = yaml.safe_load((_COUNTER / "model-config.yaml").read_text())
    del document["sequenceBatching"]
    document |= {
        "continuousBatching": True,
        "sequenceMaxIdleMSec": 1000 * _IDLE_S // _FASTER,
        "sequenceTimeoutMSec": 1000 * _LIFETIME_S // _FASTER,
    }
    config = folder / "model-config.yaml"
    config.write_text(yaml.safe_dump(document))
    files = ["--files", str(_COUNTER / "model")]
    archive = pack(folder, "--name", _NAME, "--config", str(config), *files, model=None)
    with _server(request.param, archive) as running:
        yield running


def _server(front: str, archive: Path) -> LocalServer:
    log = log_path(f"examples-{front}")
    log.unlink(missing_ok=True)
    if front == "asgi":
        return AsgiServer(
            AsgiServerSettings(
                (str(archive),),
                ports=free_ports(),
                log_file=log,
                environ={},
                start_timeout_s=START_TIMEOUT_S,
            )
        )
    return KilledTorchServe(
        TorchServeSettings(
            archive,
            config=ROOT / "config.properties",
            log_config=ROOT / "log4j2.xml",
            name=_NAME,
            ports=free_ports(),
            log_file=log,
            start_timeout_s=START_TIMEOUT_S,
        )
    )


def _load(name: str, server: LocalServer) -> ModuleType:
    """Return a module of theirs whose requests go to the server; what starts theirs does nothing."""
    source = (_TESTS / f"test_example_stateful_{name}_http.py.txt").read_text()
    module = ModuleType(name)
    module.__file__ = str(ROOT / "tests" / "e2e" / "theirs.py")
    nothing = SimpleNamespace(
        start_torchserve=lambda **_: None,
        stop_torchserve=lambda: None,
        register_model_with_params=lambda _params: None,
        unregister_model=lambda _name: None,
        ModelArchiverConfig=None,
    )
    starters = ("test_utils", "model_archiver", "model_archiver.model_archiver_config")
    source = source.replace("http://localhost:8080", server.http_url)
    with mock.patch.dict(sys.modules, dict.fromkeys(starters, nothing)):
        exec(compile(source, name, "exec"), vars(module))
    module.time = HurriedTime()  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("sequence_batching", "test_stateful_mar"),
        ("sequence_continuous_batching", "test_infer_stateful"),
        ("sequence_continuous_batching", "test_infer_stateful_end"),
        ("sequence_continuous_batching", "test_infer_stateful_idle_timeout"),
        ("sequence_continuous_batching", "test_infer_stateful_session_timeout"),
    ],
)
def test_a_test_of_theirs(server: LocalServer, tmp_path: Path, module: str, test: str) -> None:
    """It passes. A failed assertion in one of its threads fails it too, by a warning of pytest."""
    archive, store = tmp_path / _NAME, tmp_path / "store"
    archive.mkdir()
    store.mkdir()
    getattr(_load(module, server), test)(str(archive), str(store))
