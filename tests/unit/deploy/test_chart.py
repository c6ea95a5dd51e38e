"""The Helm chart in deploy/helm: its values, and in Helm's hands the objects that it makes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.support.crds import validate
from tests.support.helm import CHART, EXAMPLES, NO_HELM, helm_binaries, lint, render, template
from tests.support.manifests import KUBERNETES
from tools import chart as chart_tool
from ts_stateful.version import __version__

GATEWAY = '{"enabled": true, "parentRefs": [{"name": "public"}]}'


def values(example: str) -> dict[str, Any]:
    """Read a file of values."""
    document: dict[str, Any] = yaml.safe_load((CHART / example).read_text())
    return document


def merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a release, as Helm merges them."""
    made = dict(defaults)
    for name, value in given.items():
        old = made.get(name)
        both = isinstance(old, dict) and isinstance(value, dict)
        made[name] = merged(old, value) if both else value  # type: ignore[arg-type]
    return made


@pytest.fixture(scope="module")
def schema() -> Any:
    """Read the schema of values."""
    return json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_keep_to_the_schema(schema: Any, example: str) -> None:
    """This needs no Helm."""
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(merged(values("values.yaml"), values(example)), schema)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"front": "nginx"}, "front"),
        ({"replica": 3}, "replica"),
        ({"model": {"source": "hub"}}, "id"),
        ({"model": {"source": "url", "url": {"address": "https://a/b.exe"}}}, "address"),
        ({"model": {"source": "s3"}}, "uri"),
        ({"model": {"path": "/chat.mar"}}, "path"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"replicas": 65}, "replicas"),
        ({"autoscaling": {"type": "both"}}, "type"),
        ({"gateway": {"enabled": True}}, "parentRefs"),
        (
            {"gateway": {"sessionPersistence": {"sessionName": "TS_Request_Sequence_ID"}}},
            "sessionName",
        ),
    ],
)
def test_wrong_values_are_refused_by_their_name(schema: Any, given: Any, field: str) -> None:
    """A misspelled name too, and the header of sessions as a gateway's own."""
    validator = jsonschema.Draft7Validator(schema)
    errors = list(validator.iter_errors(merged(values("values.yaml"), given)))
    assert errors
    leaves = [leaf for error in errors for leaf in (error.context or [error])]
    assert any(field in str(error.json_path) + error.message for error in leaves)


def test_every_value_has_a_default_and_every_default_a_meaning(schema: Any) -> None:
    """The readme has both as a table."""
    text = chart_tool.PAGE.read_text()
    assert chart_tool.page(text) == text, "run `make chart` and commit the page"
    names = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert {"node.gpu.count", "gateway.sessionPersistence", "store.passwordSecret.name"} <= names
    assert set(schema["properties"]) - {"global"} == set(values("values.yaml"))


@pytest.mark.parametrize("copy", chart_tool.COPIES, ids=lambda file: str(file.name))
def test_files_of_the_chart_are_those_of_the_repository(copy: Path) -> None:
    """Helm reads none outside of the chart, so it has copies."""
    assert copy.read_bytes() == chart_tool.COPIES[copy].read_bytes(), "run `make chart`"


def test_versions_and_images_are_those_of_the_repository() -> None:
    """An image of others is named by the digest that the base has."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    base = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())
    digests = {one["name"]: one["digest"] for one in base["images"]}
    own = values("values.yaml")
    assert {
        own[name]["image"]["repository"]: own[name]["image"]["digest"]
        for name in ("proxy", "redis")
    } == digests


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("binary", helm_binaries() or [""], ids=lambda path: Path(path).name)
def test_the_linter_finds_nothing(binary: str, example: str) -> None:
    """Of each Helm that is here."""
    if not binary:
        pytest.skip(NO_HELM)
    done = lint(binary, "--values", str(CHART / example))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_objects_keep_to_the_schemas_of_the_cluster(helm: str, example: str) -> None:
    """Kubernetes' own, and those of its custom resources. Every object is in the release's namespace."""
    found = render(helm, example)
    assert len(found) >= 12
    for (_, name), one in found.items():
        assert one["metadata"]["namespace"] == "models", name
        assert len(name) <= 63
        validate(one)


def test_both_helms_make_the_same_objects() -> None:
    """Helm 3 and 4 differ in nothing that the chart uses."""
    found = helm_binaries()
    if len(found) < 2:
        pytest.skip(NO_HELM)
    for example in EXAMPLES:
        assert render(found[0], example) == render(found[1], example)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("service.yaml", "{{- end }}", ""),
        ("service.yaml", ".Values.service.grpc", ".Values.service.grpcs"),
        ("node.yaml", "podManagementPolicy:", "podManagmentPolicy:"),
        ("gateway.yaml", "backendRefs:", "backends:"),
        ("node.yaml", "      securityContext:", "     securityContext:"),
    ],
)
def test_a_broken_template_does_not_pass(
    helm: str, tmp_path: Path, file: str, old: str, new: str
) -> None:
    """Helm or a schema finds a missing end, a value of another name, a misspelled field, and a wrong indent."""
    copy = tmp_path / "ts-stateful"
    shutil.copytree(CHART, copy)
    text = (copy / "templates" / file).read_text()
    assert old in text
    (copy / "templates" / file).write_text(text.replace(old, new, 1))
    options = ("--set-json", f"gateway={GATEWAY}", "--set", "proxy.tlsSecret=")
    done = template(helm, *options, chart=copy)
    if done.returncode != 0:
        return
    made = [one for one in yaml.safe_load_all(done.stdout) if one is not None]
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        list(map(validate, made))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["config={handler: {drainSec: 90}}"], "node.terminationGracePeriodSeconds is 60"),
        (["node.preStopSeconds=31"], "node.preStopSeconds (31)"),
        (["config={handler: {store: {url: none}}}"], "name the store in store.url"),
        (["model.path=llava", "config={handler: {model: qwen}}"], "name the model in"),
        (["store.url=s3://sessions"], "set redis.enabled to false"),
        (["node.tlsSecret=nodes"], "set proxy.enabled to false"),
        (["gateway.sessionPersistence.sessionName=node"], "HAProxy keeps sessions"),
        (["gateway.enabled=true", "gateway.parentRefs[0].name=public"], "gateway.backendTLS"),
        (["autoscaling.type=keda"], "autoscaling.keda.prometheus"),
        (["front=torchserve"], "model.ownConfig"),
        (["front=torchserve", "autoscaling.type=hpa"], "handler.metricsPort"),
        (["front=torchserve", "admin.tokenSecret.name=admin"], "are for the front asgi"),
        (["model.path=llava", "model.ownConfig=true"], "only an archive"),
        (["model.ownConfig=true", "existingConfigSecret=mine"], "would not be read"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    helm: str, settings: list[str], message: str
) -> None:
    """With the name of the value and the remedy."""
    options = []
    for one in settings:
        name, _, value = one.partition("=")
        if value.startswith("{"):
            options += ["--set-json", f"{name}={json.dumps(yaml.safe_load(value))}"]
        else:
            options += ["--set", one]
    done = template(helm, *options)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_long_name_leaves_room_for_suffixes(helm: str) -> None:
    """Names of services have 63 characters at most, and a set's pods a number."""
    done = template(helm, "--set", f"fullnameOverride={'n' * 40}")
    names = re.findall(r"^  name: (\S+)$", done.stdout, re.MULTILINE)
    assert names
    assert all(len(name) <= 55 for name in names)
    assert template(helm, "--set", f"fullnameOverride={'n' * 41}").returncode != 0
