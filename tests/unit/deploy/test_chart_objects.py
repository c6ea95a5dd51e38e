"""The objects of the Helm chart: those of deploy/kubernetes by default, with pods that start in every example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm import (
    HAPROXY,
    NODE,
    REDIS,
    SERVICE,
    Objects,
    labels_of,
    model_config,
    render,
)
from tests.support.manifests import container, manifests, pod
from ts_stateful.cli.parser import build_parser
from ts_stateful.config.edit import completed
from ts_stateful.config.schema import load_config
from ts_stateful.protocol.profile import Profile


def workloads(objects: Objects) -> dict[tuple[str, str], Any]:
    """Return the objects that have pods which stay."""
    return {key: one for key, one in objects.items() if "template" in one.get("spec", {})}


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all containers of a pod."""
    return [*spec.get("initContainers", ()), *spec["containers"]]


def pods(objects: Objects) -> list[dict[str, Any]]:
    """Return the specifications of all pods, that of `helm test` included."""
    tests = [one["spec"] for (kind, _), one in objects.items() if kind == "Pod"]
    return [*(pod(one) for one in workloads(objects).values()), *tests]


@pytest.mark.parametrize(
    ("mine", "base"),
    [
        (NODE, ("StatefulSet", "node")),
        (HAPROXY, ("Deployment", "haproxy")),
        (REDIS, ("StatefulSet", "redis")),
    ],
    ids=["node", "haproxy", "redis"],
)
def test_the_defaults_are_the_base(helm: str, mine: tuple[str, str], base: tuple[str, str]) -> None:
    """Pods have the same rights, probes, resources, ports and times, and the same programs run in them."""
    made, other = render(helm)[mine], manifests()[base]
    for name in ("securityContext", "terminationGracePeriodSeconds", "enableServiceLinks"):
        assert pod(made).get(name) == pod(other).get(name)
    assert pod(made)["automountServiceAccountToken"] is False
    one, two = container(made), container(other)
    if mine == NODE:  # whose configuration is a file beside the model
        assert one["args"][0] == two["args"][0]
        one["volumeMounts"] = [each for each in one["volumeMounts"] if each["name"] != "config"]
    else:
        assert one["args"] == two["args"]
    for name in (
        *("command", "resources", "ports", "securityContext", "volumeMounts"),
        *("startupProbe", "livenessProbe", "readinessProbe"),
    ):
        assert one.get(name) == two.get(name), name
    for name in ("replicas", "podManagementPolicy"):
        assert made["spec"].get(name) == other["spec"].get(name)


def test_the_default_policies_are_the_bases(helm: str) -> None:
    """The same pods reach each other, on the same ports, and the same addresses outside."""
    found = render(helm)
    labels = {"haproxy", "node", "redis"}

    def apps(policies: list[Any]) -> set[str]:
        """Write each way as text, with the name of a pod's application for its selector."""
        ways = set()
        for one in policies:
            mine = one["spec"]["podSelector"].get("matchLabels", {})
            own = mine.get("app") or mine.get("app.kubernetes.io/component")
            for way, side in (("ingress", "from"), ("egress", "to")):
                for rule in one["spec"].get(way, ()):
                    for peer in rule[side]:
                        match = peer.get("podSelector", {}).get("matchLabels", {})
                        app = match.get("app") or match.get("app.kubernetes.io/component")
                        where = app if app in labels | {"test"} else str(peer)
                        ways |= {f"{own} {way} {where} {port['port']}" for port in rule["ports"]}
        return {one for one in ways if "test" not in one}

    mine = [one for (kind, _), one in found.items() if kind == "NetworkPolicy"]
    base = [one for (kind, _), one in manifests().items() if kind == "NetworkPolicy"]
    assert apps(mine) == apps(base)


def test_a_pod_has_no_rights_on_its_host(objects: Objects) -> None:
    """This holds for init containers and the pod of `helm test`, too."""
    assert len(pods(objects)) >= 2
    for spec in pods(objects):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for one in containers(spec):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"memory", "ephemeral-storage"} <= set(one["resources"]["limits"])


def test_what_is_mounted_and_named_exists(objects: Objects) -> None:
    """Volumes, ConfigMaps, ports of services and of policies."""
    for one in workloads(objects).values():
        spec = pod(one)
        claims = one["spec"].get("volumeClaimTemplates", [])
        volumes = {v["name"] for v in spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in claims}
        assert {m["name"] for c in containers(spec) for m in c["volumeMounts"]} == volumes
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in objects
    by_labels = {str(labels_of(one)): container(one) for one in workloads(objects).values()}
    for (kind, _), one in objects.items():
        if kind == "Service":
            ports = {port["name"] for port in by_labels[str(one["spec"]["selector"])]["ports"]}
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
        if kind == "PodDisruptionBudget":
            assert str(one["spec"]["selector"]["matchLabels"]) in by_labels


def test_the_configuration_is_one_of_a_model(objects: Objects) -> None:
    """The server takes it, with the path of the model, and a store whose secrets are in the environment."""
    document = model_config(objects)
    assert load_config(completed(document)).frontend.profile is Profile.CONTINUOUS
    node = container(objects[NODE])
    names = {one["name"] for one in node["env"]}
    store = document["handler"]["store"]
    assert {store[key] for key in ("passwordEnv", "encryptionKeyEnv") if key in store} <= names
    assert "PASSWORD" not in str(store["url"])
    for one in node["env"]:
        if one["name"].endswith(("PASSWORD", "KEYS", "TOKEN")):
            assert set(one["valueFrom"]["secretKeyRef"]) == {"name", "key"}


def test_the_command_of_a_node_parses(objects: Objects, tmp_path: Path) -> None:
    """Files that it names are in its mounts, and so is the model."""
    node = container(objects[NODE])
    if "command" in node:
        assert node["command"][:3] == ["python", "-m", "ts_stateful.torchserve.entrypoint"]
        (pack,) = pod(objects[NODE])["initContainers"]
        config = tmp_path / "model-config.yaml"
        config.write_text(yaml.safe_dump(model_config(objects)))
        arguments = [*pack["command"][1:], *pack["args"]]
        arguments[arguments.index("--config") + 1] = str(config)
        options = build_parser().parse_args(arguments)
        assert f"--model-store={options.output}" in node["args"]
        assert f"--models={options.name}={options.name}.mar" in node["args"]
        return
    options = build_parser().parse_args(["serve", "--host", "::", *node["args"]])
    paths = [*options.models, str(options.config)]
    mounts = [mount["mountPath"] for mount in node["volumeMounts"]]
    for path in paths:
        assert any(path.startswith(f"{mount}/") for mount in mounts), path
    if not paths[0].endswith(".mar"):
        assert model_config(objects)["handler"]["model"] == paths[0]


def test_torchserve_listens_for_others(helm: str) -> None:
    """Its inference does, its management does not; probes and HAProxy ask the model."""
    found = render(helm, "values-torchserve.yaml")
    text = found["ConfigMap", "chat-ts-stateful-files"]["data"]["config.properties"]
    assert "\ninference_address=http://0.0.0.0:8080\n" in text
    assert "\ngrpc_inference_address=0.0.0.0\n" in text
    assert "\nmanagement_address=http://127.0.0.1:8081\n" in text
    assert "\ngrpc_management_address=127.0.0.1\n" in text
    variables = {one["name"]: one.get("value") for one in container(found[HAPROXY])["env"]}
    assert variables["TS_FRONT"] == "torchserve"
    probe = container(found[NODE])["readinessProbe"]["exec"]["command"]
    assert probe == ["python", "/etc/ts-stateful/files/hello.py", variables["TS_MODEL"]]


def test_haproxy_finds_the_nodes_of_its_release(objects: Objects) -> None:
    """By the name of their service."""
    variables = [v for key in {HAPROXY} & set(objects) for v in container(objects[key])["env"]]
    for name in [one["value"] for one in variables if one["name"] == "TS_DNS"]:
        service, namespace, _ = name.split(".", 2)
        assert ("Service", service) in objects
        assert namespace == "models"
        assert objects[NODE]["spec"]["serviceName"] == service
    assert bool(variables) is (objects[SERVICE]["spec"]["selector"] != labels_of(objects[NODE]))
