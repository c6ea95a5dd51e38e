"""The objects of the Helm chart: those of deploy/kubernetes by default, and what each example adds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.support.helm import CHART, EXAMPLES, NO_HELM, Objects, helm_binaries, render
from tests.support.manifests import container, manifests, pod
from tests.support.prometheus import RULES
from ts_stateful.cli.parser import build_parser
from ts_stateful.config.edit import completed
from ts_stateful.config.schema import load_config
from ts_stateful.frontend.metrics.prometheus import EngineMetrics
from ts_stateful.protocol.profile import Profile

NODE = ("StatefulSet", "chat-ts-stateful-node")
HAPROXY = ("Deployment", "chat-ts-stateful-haproxy")
REDIS = ("StatefulSet", "chat-ts-stateful-redis")
SERVICE = ("Service", "chat-ts-stateful")


@pytest.fixture(scope="module")
def helm() -> str:
    """Find the newest Helm."""
    found = helm_binaries()
    if not found:
        pytest.skip(NO_HELM)
    return found[0]


@pytest.fixture(params=EXAMPLES)
def objects(request: pytest.FixtureRequest, helm: str) -> Objects:
    """Return the objects of each example."""
    return render(helm, request.param)


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


def labels_of(workload: Any) -> Any:
    """Return the labels by which a workload selects its pods."""
    return workload["spec"]["selector"]["matchLabels"]


def model_config(objects: Objects) -> dict[str, Any]:
    """Read the configuration of the model."""
    text = objects["ConfigMap", "chat-ts-stateful-config"]["data"]["model-config.yaml"]
    document: dict[str, Any] = yaml.safe_load(text)
    return document


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
    options = build_parser().parse_args(["serve", "--host", "0.0.0.0", *node["args"]])
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
    variables = {one["name"]: one["value"] for one in container(found[HAPROXY])["env"]}
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


def test_an_autoscaler_reads_metrics_that_the_server_has(objects: Objects) -> None:
    """There is one at most, and the set then names no number of its own."""
    hpas = [one for (kind, _), one in objects.items() if kind == "HorizontalPodAutoscaler"]
    kedas = [one for (kind, _), one in objects.items() if kind == "ScaledObject"]
    assert len(hpas) + len(kedas) == ("replicas" not in objects[NODE]["spec"])
    names = [one["pods"]["metric"]["name"] for hpa in hpas for one in hpa["spec"]["metrics"]]
    queries = [one["metadata"]["query"] for k in kedas for one in k["spec"]["triggers"]]
    names += [re.findall(r"^sum\((\w+)\{", query)[0] for query in queries]
    registry = CollectorRegistry()
    registry.register(EngineMetrics([]))
    served = {family.name for family in registry.collect()}
    assert set(names) <= served
    for query in queries:
        (pattern,) = re.findall(r'pod=~"(.*)"', query)
        assert re.fullmatch(pattern, f"{NODE[1]}-12")
        assert 'namespace="models"' in query
    for one in [*hpas, *kedas]:
        assert one["spec"]["scaleTargetRef"]["name"] == NODE[1]


def test_prometheus_gets_the_rules_of_the_repository(helm: str) -> None:
    """Word for word, under the job that they name, from the nodes alone."""
    found = render(helm, "values-production.yaml")
    groups = found["PrometheusRule", "chat-ts-stateful-rules"]["spec"]["groups"]
    assert groups == [
        group
        for name in ("recording.yml", "alerts.yml")
        for group in yaml.safe_load((RULES / name).read_text())["groups"]
    ]
    monitor = found["ServiceMonitor", NODE[1]]["spec"]
    assert monitor["endpoints"][0]["relabelings"] == [
        {"targetLabel": "job", "replacement": "ts-stateful"}
    ]
    selected = monitor["selector"]["matchLabels"].items()
    services = [
        one
        for (kind, _), one in found.items()
        if kind == "Service" and selected <= one["metadata"]["labels"].items()
    ]
    ports = [port["name"] for one in services for port in one["spec"]["ports"]]
    assert ports.count("metrics") == 1


def test_a_gpu_is_a_limit_beside_the_others(helm: str) -> None:
    """With the runtime's class, tolerations, and the nodes' labels in each spread."""
    found = render(helm, "values-gpu.yaml")
    limits = container(found[NODE])["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 1
    assert {"memory", "ephemeral-storage"} <= set(limits)
    spec = pod(found[NODE])
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    spreads = spec["topologySpreadConstraints"]
    labels = labels_of(found[NODE])
    assert [one["labelSelector"] for one in spreads] == [{"matchLabels": labels}] * 2
    assert model_config(found)["handler"]["store"]["kvSpill"] is True


def test_only_a_change_of_the_configuration_replaces_nodes(helm: str) -> None:
    """Not one of HAProxy's, or of the number of nodes."""
    template = render(helm)[NODE]["spec"]["template"]
    for same in ("replicas=3", "proxy.uploads=20", 'monitoring.dashboard={"enabled": true}'):
        assert render(helm, "values.yaml", same)[NODE]["spec"]["template"] == template
    other = render(helm, "values.yaml", 'config={"maxNumSequence": 7}')
    assert other[NODE]["spec"]["template"] != template


def test_a_route_leads_to_the_service_of_clients(helm: str) -> None:
    """To the nodes with the gateway's own persistence, or to HAProxy over TLS and without it."""
    nodes = render(helm, "values-gateway.yaml")
    for kind, name in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        (rule,) = nodes[kind, f"chat-ts-stateful-{name}"]["spec"]["rules"]
        ports = {one["name"]: one["port"] for one in nodes[SERVICE]["spec"]["ports"]}
        assert rule["backendRefs"] == [{"name": SERVICE[1], "port": ports[name]}]
        assert rule["sessionPersistence"]["type"] == "Cookie"
    assert nodes[SERVICE]["spec"]["selector"]["app.kubernetes.io/component"] == "node"
    gateway = 'gateway={"enabled": true, "parentRefs": [{"name": "public"}], "backendTLS": {"hostname": "chat"}}'
    proxied = render(helm, "values.yaml", gateway)
    assert "sessionPersistence" not in str(proxied["HTTPRoute", "chat-ts-stateful-http"])
    policy = proxied["BackendTLSPolicy", "chat-ts-stateful"]["spec"]
    assert policy["targetRefs"][0]["name"] == SERVICE[1]
    assert proxied[SERVICE]["spec"]["selector"]["app.kubernetes.io/component"] == "haproxy"
    hashed = render(helm, "values-gateway-hash.yaml")["BackendTrafficPolicy", "chat-ts-stateful"]
    for target in hashed["spec"]["targetRefs"]:
        assert (target["kind"], target["name"]) in render(helm, "values-gateway-hash.yaml")


def test_the_sources_of_models_are_fetched_to_where_nodes_serve_them(helm: str) -> None:
    """An archive stays a file; a role or a secret gives access, never the command."""
    url = "https://models.example.com/chat.mar"
    found = render(
        helm,
        "values.yaml",
        f'model={{"source": "url", "url": {{"address": "{url}", "sha256": "{"a" * 64}"}}}}',
    )
    (fetch,) = pod(found[NODE])["initContainers"]
    assert fetch["args"] == [url, "/models/chat.mar", f"--sha256={'a' * 64}"]
    assert container(found[NODE])["args"][0] == "/models/chat.mar"
    for example in ("values-gpu.yaml", "values-s3.yaml"):
        node = render(helm, example)[NODE]
        (fetch,) = pod(node)["initContainers"]
        assert fetch["args"][1] == container(node)["args"][0]
    assert (CHART / "files" / "fetch_model.py").name == fetch["command"][-1].rpartition("/")[2]
