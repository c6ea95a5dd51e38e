"""The files in deploy/haproxy and deploy/kubernetes: valid, and in agreement with each other and the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.e2e.server import ROOT
from tests.support.fake_servers import http_server
from tests.support.fake_sessions import FakeSessions
from tests.support.haproxy import CONFIG, NO_HAPROXY, check, haproxy_binary
from tests.support.manifests import KUBERNETES, container, manifests
from ts_stateful.config.schema import EngineConfig
from ts_stateful.protocol.sagemaker import SESSION_ID

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
HEADERS = ("ts_request_sequence_id", SESSION_ID)


@pytest.fixture(scope="module")
def served(repository: Path) -> dict[str, Any]:
    """Read the repository's model-config.yaml."""
    document: dict[str, Any] = yaml.safe_load((repository / "model-config.yaml").read_text())
    return document


@pytest.mark.parametrize("environ", [{}, {"TS_DNS": "torchserve.default.svc.cluster.local"}])
def test_haproxy_takes_the_configuration(environ: dict[str, str]) -> None:
    """Nodes may have addresses or a name; there is no warning."""
    binary = haproxy_binary()
    if binary is None:
        pytest.skip(NO_HAPROXY)
    done = check(binary, CONFIG, **environ)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr


def test_checks_find_a_place_on_a_busy_node(served: dict[str, Any]) -> None:
    """HAProxy sends a node fewer requests at a time than it has places."""
    (limit,) = re.findall(r" maxconn (\d+) ", CONFIG.read_text())
    assert int(limit) < served["batchSize"]


def test_the_table_keeps_a_session_for_as_long_as_it_can_live(served: dict[str, Any]) -> None:
    """It has room for the longest id."""
    length, hours = re.findall(
        r"stick-table type string len (\d+) .* expire (\d+)h", CONFIG.read_text()
    )[0]
    assert int(length) > 226
    assert int(hours) * 3_600_000 >= served["sequenceTimeoutMSec"]


@pytest.mark.parametrize("header", HEADERS)
def test_sessions_are_read_from_both_headers(header: str) -> None:
    """This holds for requests and answers."""
    text = CONFIG.read_text()
    assert f"set-var(txn.session) req.hdr({header})" in text
    assert f"stick store-response res.fhdr({header}),field(1,;) table sessions" in text


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    """Read the objects of the base, by kind and name."""
    found = manifests()
    assert len(found) == 14
    return found


def environment(workload: Any) -> dict[str, str]:
    """Return the variables of a workload's container."""
    return {one["name"]: one.get("value", "") for one in container(workload)["env"]}


def test_services_and_budgets_select_existing_pods_and_ports(
    objects: dict[tuple[str, str], Any],
) -> None:
    """They select by labels, and by names of ports."""
    workloads = [one for one in objects.values() if "template" in one.get("spec", {})]
    by_labels = {str(one["spec"]["selector"]["matchLabels"]): one for one in workloads}
    assert len(by_labels) == len(workloads) == 3
    for one in workloads:
        assert (
            one["spec"]["template"]["metadata"]["labels"] == one["spec"]["selector"]["matchLabels"]
        )
        if one["kind"] == "StatefulSet":
            assert ("Service", one["spec"]["serviceName"]) in objects
    for (kind, _), one in objects.items():
        if kind == "Service":
            pods = container(by_labels[str(one["spec"]["selector"])])
            ports = {port["name"] for port in pods["ports"]}
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
        if kind == "PodDisruptionBudget":
            assert str(one["spec"]["selector"]["matchLabels"]) in by_labels


def test_haproxy_finds_the_nodes(objects: dict[tuple[str, str], Any]) -> None:
    """It finds all by the name and ports of their service, and listens on the ports of its own service."""
    haproxy = objects["Deployment", "haproxy"]
    variables = environment(haproxy)
    service, _, domain = variables["TS_DNS"].partition(".")
    assert domain == "$(POD_NAMESPACE).svc.cluster.local"
    nodes = objects["Service", service]["spec"]
    assert nodes["clusterIP"] == "None"
    ports = {port["name"]: port["port"] for port in nodes["ports"]}
    text = CONFIG.read_text()
    templates = re.findall(r'server-template node (\d+) "\$\{TS_DNS\}:(\d+)"', text)
    assert [int(port) for _, port in templates] == [ports["http"], ports["grpc"]]
    assert all(int(count) >= 2 for count, _ in templates)
    assert re.findall(r"check-proto h1 port (\d+)", text) == [str(ports["http"])]
    listens = [f":{port['containerPort']}" for port in container(haproxy)["ports"]]
    assert listens == [variables["TS_HTTP"], variables["TS_GRPC"]]
    assert all(
        f"presetenv {name} " in text or name in ("POD_NAMESPACE", "TS_DNS", "TS_CERT")
        for name in variables
    )
    assert variables["TS_MODEL"] == environment(objects["StatefulSet", "torchserve"])["MODEL"]


def test_the_sources_of_the_nodes_image_exist() -> None:
    """Docker receives the Dockerfile's sources, and its linter finds nothing."""
    dockerfile = KUBERNETES / "Dockerfile"
    lines = [line for line in dockerfile.read_text().splitlines() if line.startswith("COPY ")]
    copied = {word for line in lines for word in line.split()[1:-1]}
    assert all((ROOT / name).exists() for name in copied)
    kept = (KUBERNETES / "Dockerfile.dockerignore").read_text().splitlines()[1:]
    assert kept[0] == "*"
    assert {name.removeprefix("!/").split("/**")[0] for name in kept[1:]} == copied
    linter = Path(sys.executable).with_name("hadolint")
    if linter.exists():
        done = subprocess.run([linter, dockerfile], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")


def test_a_node_has_time_to_finish_its_turns(objects: dict[tuple[str, str], Any]) -> None:
    """Its first process drains the engines; TorchServe's own stop takes additional time."""
    pod = objects["StatefulSet", "torchserve"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= EngineConfig().drain_sec + 10
    assert '"-m", "ts_stateful.torchserve.entrypoint"' in (KUBERNETES / "Dockerfile").read_text()


def test_the_probe_asks_the_model() -> None:
    """Its status is 0 if the model answers, and 1 otherwise."""
    fake = FakeSessions()
    with http_server(fake) as port:
        for model, status in (("chat", 0), ("another", 1)):
            done = subprocess.run(
                [sys.executable, KUBERNETES / "hello.py", str(port)],
                env={**os.environ, "MODEL": model},
                capture_output=True,
                check=False,
            )
            assert done.returncode == status
    assert len(fake.of_kind("hello")) == 1


@pytest.mark.parametrize("folder", ["base", "gpu"])
def test_kustomize_builds_it(folder: str) -> None:
    """The result is valid, in a namespace of its own, with the repository's HAProxy configuration and images by digest.

    In `gpu`, each node has a GPU.
    """
    command = shutil.which("kubectl")
    if command is None:
        pytest.skip("needs kubectl")
    done = subprocess.run(
        [command, "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    built = {one["kind"]: one for one in documents}
    config = built["ConfigMap"]
    assert config["data"] == {CONFIG.name: CONFIG.read_text()}
    volume = built["Deployment"]["spec"]["template"]["spec"]["volumes"][0]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert ("nvidia.com/gpu: 1" in done.stdout) is (folder == "gpu")
    namespace = built["Namespace"]["metadata"]["name"]
    assert {one["metadata"].get("namespace", namespace) for one in documents} == {namespace}
    for one in documents:
        kubernetes_validate.validate(one, "1.37", strict=True)
    images = {container(one)["image"] for one in documents if "template" in one.get("spec", {})}
    mine = {image for image in images if image.startswith("registry.invalid/")}
    assert len(mine) == 1
    assert len(images - mine) == 2
    assert all(DIGEST.search(image) for image in images - mine)
