"""What values add to the objects of the Helm chart: autoscaling, monitoring, GPUs, routes, and sources of models."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.support.helm import (
    CHART,
    HAPROXY,
    NODE,
    REDIS,
    SERVICE,
    Objects,
    labels_of,
    model_config,
    render,
)
from tests.support.manifests import container, pod
from tests.support.prometheus import RULES
from ts_stateful.config.schema import EngineConfig
from ts_stateful.frontend.metrics.prometheus import EngineMetrics


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


@pytest.mark.parametrize(
    ("key", "name"),
    [("node", NODE), ("proxy", HAPROXY), ("redis", REDIS)],
    ids=["node", "haproxy", "redis"],
)
def test_each_pod_can_be_put_on_machines(helm: str, key: str, name: tuple[str, str]) -> None:
    """By selectors, tolerations and affinity of its own."""
    machines = {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "c"}], "affinity": {}}
    found = render(helm, "values.yaml", f"{key}={json.dumps(machines)}")
    for workload, one in ((each, pod(found[each])) for each in (NODE, HAPROXY, REDIS)):
        mine = {part: one[part] for part in machines if part in one}
        assert mine == (
            {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "c"}]} if workload == name else {}
        )


def test_a_node_leaves_the_gateway_before_it_drains(helm: str) -> None:
    """HAProxy needs no such time."""
    assert "lifecycle" not in container(render(helm)[NODE])
    found = render(helm, "values-gateway.yaml")[NODE]
    command = container(found)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["sleep", "5"]
    grace = pod(found)["terminationGracePeriodSeconds"]
    assert grace >= int(command[1]) + EngineConfig().drain_sec + 10


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
