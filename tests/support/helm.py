"""Helm, and the objects that it makes of the chart in deploy/helm."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "CHART",
    "EXAMPLES",
    "HAPROXY",
    "NODE",
    "NO_HELM",
    "REDIS",
    "SERVICE",
    "Objects",
    "helm_binaries",
    "labels_of",
    "lint",
    "model_config",
    "render",
    "template",
]

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "deploy" / "helm" / "ts-stateful"
NO_HELM = "no helm: make helm"
# Objects of the release `chat`, which `render` names so.
NODE = ("StatefulSet", "chat-ts-stateful-node")
HAPROXY = ("Deployment", "chat-ts-stateful-haproxy")
REDIS = ("StatefulSet", "chat-ts-stateful-redis")
SERVICE = ("Service", "chat-ts-stateful")
# The defaults, and each example.
EXAMPLES = ("values.yaml", *sorted(file.name for file in CHART.glob("values-*.yaml")))
Objects = dict[tuple[str, str], Any]


def helm_binaries() -> list[str]:
    """Return the programs that there are, the newest of `make helm` first."""
    made = sorted((ROOT / "build" / "tools").glob("helm?"), reverse=True)
    own = shutil.which("helm")
    return [str(file) for file in made] or ([] if own is None else [own])


def template(binary: str, *options: str, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """Render the chart as the release `chat` in the namespace `models`."""
    command = [binary, "template", "chat", str(chart), "--namespace", "models", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def lint(binary: str, *options: str, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """Run Helm's linter, for which a warning is an error."""
    command = [binary, "lint", "--strict", str(chart), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@functools.cache
def render(binary: str, example: str = "values.yaml", *settings: str) -> Objects:
    """Return the objects of the chart with the values of an example, by kind and name."""
    options = [part for one in settings for part in ("--set-json", one)]
    done = template(binary, "--values", str(CHART / example), *options)
    assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.safe_load_all(done.stdout) if one is not None]
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(found) == len(documents)
    return found


def labels_of(workload: Any) -> Any:
    """Return the labels by which a workload selects its pods."""
    return workload["spec"]["selector"]["matchLabels"]


def model_config(objects: Objects) -> dict[str, Any]:
    """Read the configuration of the model."""
    text = objects["ConfigMap", "chat-ts-stateful-config"]["data"]["model-config.yaml"]
    document: dict[str, Any] = yaml.safe_load(text)
    return document
