"""The files in deploy/haproxy and deploy/kubernetes: valid, and in agreement with each other and the repository."""

from __future__ import annotations

import json
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
from tests.support.haproxy import CONFIG, NO_HAPROXY, check, haproxy, haproxy_binary
from tests.support.manifests import KUBERNETES, container, manifests, pod
from tests.support.worker import eventually
from ts_stateful.cli.parser import build_parser
from ts_stateful.config.schema import EngineConfig
from ts_stateful.protocol.sagemaker import SESSION_ID
from ts_stateful.serving.ports import Ports

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
HEADERS = ("ts_request_sequence_id", SESSION_ID)


@pytest.fixture(scope="module")
def served(repository: Path) -> dict[str, Any]:
    """Read the repository's model-config.yaml."""
    document: dict[str, Any] = yaml.safe_load((repository / "model-config.yaml").read_text())
    return document


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TS_DNS": "node.default.svc.cluster.local"},
        {"TS_FRONT": "torchserve"},
        {"TS_FRONT": "torchserve", "TS_DNS": "node.default.svc.cluster.local"},
    ],
)
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
    (limit,) = re.findall(r" maxconn (\d+) check", CONFIG.read_text())
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
    assert [int(port) for _, port in templates] == [ports["http"], ports["http"], ports["grpc"]]
    assert all(int(count) >= 2 for count, _ in templates)
    assert re.findall(r"check-proto h1 port (\d+)", text) == [str(ports["http"])]
    for name, port in zip(("TS_HTTP", "TS_GRPC"), container(haproxy)["ports"], strict=True):
        number = port["containerPort"]
        assert variables[name] == f"127.0.0.1:{number},$(POD_IP):{number}"
    assert all(
        f"presetenv {name} " in text or name in ("POD_NAMESPACE", "POD_IP", "TS_DNS", "TS_CERT")
        for name in variables
    )


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
    """At SIGTERM, which tini passes on."""
    spec = pod(objects["StatefulSet", "node"])
    assert spec["terminationGracePeriodSeconds"] >= EngineConfig().drain_sec + 10
    (command,) = re.findall("^ENTRYPOINT (.*)$", (KUBERNETES / "Dockerfile").read_text(), re.M)
    assert json.loads(command)[:2] == ["tini", "--"]


def test_the_command_of_a_node_is_valid(objects: dict[tuple[str, str], Any]) -> None:
    """It serves one archive of the volume to others, and its metrics."""
    text = (KUBERNETES / "Dockerfile").read_text()
    entry = json.loads(re.findall("^ENTRYPOINT (.*)$", text, re.M)[0])
    only = container(objects["StatefulSet", "node"])
    assert entry[2] == "ts-stateful"
    options = build_parser().parse_args([*entry[3:], *only["args"]])
    assert (options.command, options.front) == ("serve", "asgi")
    assert options.host == options.metrics_host == "::"
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    assert ports == {
        "http": options.http_port,
        "grpc": options.grpc_port,
        "metrics": options.metrics_port,
    }
    (model,) = options.models
    mounts = [one["mountPath"] for one in only["volumeMounts"]]
    assert any(model.startswith(f"{path}/") for path in mounts)


def test_the_probes_are_the_fronts(objects: dict[tuple[str, str], Any]) -> None:
    """A node whose engine is replaced is not ready, and is not restarted."""
    only = container(objects["StatefulSet", "node"])
    paths = {kind: only[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {
        "startup": {"path": "/livez", "port": "http"},
        "liveness": {"path": "/livez", "port": "http"},
        "readiness": {"path": "/readyz", "port": "http"},
    }


@pytest.mark.parametrize("front", ["asgi", "torchserve"])
def test_haproxy_checks_what_the_front_answers(front: str, tmp_path: Path) -> None:
    """These nodes answer `hello` like TorchServe, and have no /readyz."""
    binary = haproxy_binary()
    if binary is None:
        pytest.skip(NO_HAPROXY)
    fake = FakeSessions()
    with http_server(fake) as port:
        nodes = [Ports(http=port, grpc=port)] * 2
        with haproxy(binary, nodes, tmp_path / "log", TS_FRONT=front) as proxy:
            if front == "asgi":
                eventually(proxy.has_lost_one)
            else:
                eventually(lambda: bool(fake.of_kind("hello")))


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
