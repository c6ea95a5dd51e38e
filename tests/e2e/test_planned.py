"""A server with a file of `ts-stateful plan` holds all planned sessions, more than its device does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.server import ROOT, START_TIMEOUT_S, KilledTorchServe, log_path, pack
from tests.e2e.speak import DIALOGUE, Speaker, eventually
from tests.support.ports import free_ports
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings

Speak = Callable[[TorchServe], Speaker]

NUM_SESSIONS = 20
# Two gibibytes for TorchServe, the weights, and room for a few sessions of 128 tokens.
MEMORY = (2 << 30) + 7_500_000


@pytest.fixture(scope="module", params=["continuous", "sequence"])
def planned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TorchServe, Path]]:
    """Start a server with the planned configuration of a profile."""
    folder = tmp_path_factory.mktemp("plan")
    model = ROOT / "examples" / "shapes" / "model"
    options = f"--sessions {NUM_SESSIONS} --memory {MEMORY} --tokens 128 --profile {request.param}"
    done = subprocess.run(
        [sys.executable, "-m", "ts_stateful.cli", "plan", *options.split(), "--model", str(model)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "not all sessions fit" in done.stderr
    config = folder / "model-config.yaml"
    config.write_text(done.stdout)
    log = log_path(f"plan-{request.param}")
    log.unlink(missing_ok=True)
    with KilledTorchServe(
        TorchServeSettings(
            pack(folder / "archive", "--config", str(config)),
            config=ROOT / "config.properties",
            log_config=ROOT / "log4j2.xml",
            ports=free_ports(),
            log_file=log,
            start_timeout_s=START_TIMEOUT_S,
        )
    ) as server:
        yield server, config


def test_a_planned_server_holds_what_was_asked(
    planned: tuple[TorchServe, Path], speak: Speak
) -> None:
    """All sessions are open and continue, the planned number stays on the device, and another one parks the first."""
    server, config = planned
    speaker = speak(server)
    names = [speaker.open() for _ in range(NUM_SESSIONS)]
    for question, answer in DIALOGUE[:2]:
        for name in names:
            asked = speaker.ask({"prompt": question, "max_new_tokens": 8}, session=name)
            assert asked["text"] == answer
    found = [speaker.ask({"type": "info"}, session=name)["residency"] for name in names]
    stay = _planned_to_stay(config)
    assert 0 < stay < NUM_SESSIONS
    assert stay <= found.count("device") < NUM_SESSIONS
    another = speaker.post({"type": "open"})
    if another.is_success:
        assert speaker.ask({"type": "info"}, session=names[0])["saved"]
        eventually(lambda: speaker.figure("StatefulSessionsOpen") == NUM_SESSIONS)
    else:  # by TorchServe itself, in the sequence profile
        assert another.status_code == 503


def _planned_to_stay(config: Path) -> int:
    """Read the sessions of a device from the table in the file."""
    [line] = [line for line in config.read_text().splitlines() if line.startswith("# on a device ")]
    number = line.split()[4]
    assert yaml.safe_load(config.read_text())["handler"]["deviceCacheBytes"] > 1 << 20
    return int(number)
