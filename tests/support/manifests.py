"""The objects in deploy/kubernetes/base, as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["KUBERNETES", "container", "manifests", "pod", "workloads"]

KUBERNETES = Path(__file__).resolve().parent.parent.parent / "deploy" / "kubernetes"


def manifests() -> dict[tuple[str, str], Any]:
    """Read all objects, by kind and name."""
    documents = [
        document
        for file in sorted((KUBERNETES / "base").glob("[!k]*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
    ]
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(found) == len(documents)
    return found


def workloads() -> dict[str, Any]:
    """Read the objects that have pods, by name."""
    return {
        name: one for (_, name), one in manifests().items() if "template" in one.get("spec", {})
    }


def pod(workload: Any) -> dict[str, Any]:
    """Return the specification of a workload's pods."""
    return dict(workload["spec"]["template"]["spec"])


def container(workload: Any) -> dict[str, Any]:
    """Return the only container of a workload's pods."""
    (only,) = pod(workload)["containers"]
    return dict(only)
