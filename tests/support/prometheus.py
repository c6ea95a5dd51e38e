"""Prometheus with the files in deploy/observability, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.support.ports import free_port

__all__ = [
    "NO_PROMETHEUS",
    "OBSERVABILITY",
    "RULES",
    "Prometheus",
    "at_once",
    "prometheus",
    "prometheus_binary",
]

NO_PROMETHEUS = "no prometheus: apt-get install prometheus"
OBSERVABILITY = Path(__file__).resolve().parent.parent.parent / "deploy" / "observability"
RULES = OBSERVABILITY / "prometheus"
_INTERVAL = "1s"


def prometheus_binary(name: str = "prometheus") -> str | None:
    """Find the server's program, or `promtool`."""
    return shutil.which(name)


def at_once(rules: str) -> str:
    """Return rules of which each alert fires as soon as its condition is met."""
    return re.sub(r"(?m)^(\s+for:) \d+[smh]$", r"\1 0s", rules)


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v1", trust_env=False)

    def is_ready(self) -> bool:
        """Return True if it answers."""
        with contextlib.suppress(httpx.TransportError):
            return bool(self._http.get("/status/buildinfo").is_success)
        return False

    def query(self, expression: str) -> list[float]:
        """Return the value of each series; an expression that does not parse fails the test."""
        response = self._http.post("/query", data={"query": expression})
        assert response.is_success, f"{expression}: {response.text}"
        return [float(one["value"][1]) for one in response.json()["data"]["result"]]

    def has_data(self, expression: str) -> bool:
        """Return True if a series of the expression has a number."""
        return any(math.isfinite(value) for value in self.query(expression))

    def has_sum(self, series: str, value: float) -> bool:
        """Return True if the last values that were read add up to at least this."""
        return sum(self.query(series)) >= value

    def values(self, label: str, selector: str) -> list[str]:
        """Return the values of a label, as variables of Grafana ask for them."""
        response = self._http.get(f"/label/{label}/values", params={"match[]": selector})
        assert response.is_success, response.text
        return list(response.json()["data"])

    def has_fired(self, alert: str) -> bool:
        """Return True if the alert fires, or has fired since the server was started."""
        series = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
        return bool(self.query(f"count_over_time({series}[1h])"))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


@contextlib.contextmanager
def prometheus(binary: str, folder: Path, target: str) -> Iterator[Prometheus]:
    """Start a server that reads `target` each second, with the rules of this repository `at_once`."""
    shutil.copytree(RULES, folder, dirs_exist_ok=True)
    config = folder / "prometheus.yml"
    config.write_text(re.sub(r"_interval: \d+s", f"_interval: {_INTERVAL}", config.read_text()))
    (folder / "alerts.yml").write_text(at_once((RULES / "alerts.yml").read_text()))
    (folder / "targets" / "local.yml").write_text(f"- targets: [{target}]\n")
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(binary, "--config.file", str(config), "--web.listen-address", address),
        *("--storage.tsdb.path", str(folder / "data"), "--log.level", "warn"),
    ]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
        contextlib.closing(Prometheus(f"http://{address}")) as server,
    ):
        try:
            yield server
        finally:
            process.kill()
