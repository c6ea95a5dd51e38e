"""The example for Ray Serve in deploy/ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ts_stateful.asgi.ray_serve.settings import RayArguments

_FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "ray"
_DOCUMENT = yaml.safe_load((_FOLDER / "serve.yaml").read_text(encoding="utf-8"))


def test_its_arguments_are_known() -> None:
    """The README describes each argument."""
    (application,) = _DOCUMENT["applications"]
    assert RayArguments.of(application["args"]).max_replicas > 1
    readme = (_FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(RayArguments.__struct_fields__) <= set(re.findall(r"`(\w+)`", readme))


def test_it_is_a_configuration_of_ray_serve() -> None:
    """Ray's own schema takes it."""
    schema = pytest.importorskip("ray.serve.schema", reason="no Ray")
    (application,) = schema.ServeDeploySchema.model_validate(_DOCUMENT).applications
    assert application.import_path == "ts_stateful.asgi:app"
