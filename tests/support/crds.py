"""The schemas of Kubernetes and of other projects' resources, against which manifests are checked."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

__all__ = ["KUBERNETES_VERSION", "validate"]

KUBERNETES_VERSION = "1.37"
_OWN = ("networking.k8s.io",)
_CRDS = Path(__file__).resolve().parents[1] / "unit" / "deploy" / "crds"


@functools.cache
def _schemas() -> dict[tuple[str, str], Any]:
    """Read the schemas of custom resources, by version and kind."""
    documents = [json.loads(file.read_text()) for file in _CRDS.glob("*.json")]
    return {(one["apiVersion"], one["kind"]): _closed(one["schema"]) for one in documents}


def _closed(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items()}
    is_open = made.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(made.get("properties"), dict) and "type" in made and not is_open:
        made.setdefault("additionalProperties", False)
    if str(made.get("pattern", "")).startswith("^(?i)"):  # Go takes flags anywhere
        made["pattern"] = made["pattern"].replace("^(?i)", "(?i)^")
    if made.get("x-kubernetes-int-or-string"):
        made = {"type": ["integer", "string"]}
    return made


def validate(document: Any) -> None:
    """Check an object of Kubernetes, or of a project whose schema is in tests/unit/deploy/crds.

    Raises:
        jsonschema.ValidationError, kubernetes_validate.ValidationError: it is not valid.
        KeyError: its schema is missing.
    """
    group = document["apiVersion"].rpartition("/")[0]
    if "." not in group or group in _OWN:
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
        return
    schema = _schemas()[document["apiVersion"], document["kind"]]
    body = {**document, "metadata": {}}
    assert document["metadata"]["name"]
    jsonschema.validate(body, schema)
