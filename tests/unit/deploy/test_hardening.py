"""The rights of the pods in deploy/kubernetes: on the host, on the cluster, and on the network."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

import pytest

from tests.e2e.server import ROOT
from tests.support.manifests import container, manifests, pod, workloads

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\b")
PODS = ("haproxy", "node", "redis")


@pytest.fixture(params=PODS)
def workload(request: pytest.FixtureRequest) -> Any:
    """Return each workload."""
    return workloads()[request.param]


def test_all_workloads_are_checked() -> None:
    """A new one has to be added here."""
    assert tuple(sorted(workloads())) == PODS


def test_a_pod_has_no_rights_on_its_host(workload: Any) -> None:
    """It is not root, cannot become root, has no capabilities, no token, and the runtime's filter of system calls."""
    spec = pod(workload)
    assert spec["automountServiceAccountToken"] is False
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["runAsGroup"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)


def test_what_a_pod_may_fill_is_bounded(workload: Any) -> None:
    """Memory, the writable layer and logs, and each writable volume."""
    limits = container(workload)["resources"]["limits"]
    assert {"memory", "ephemeral-storage"} <= set(limits)
    writable = {
        one["name"] for one in container(workload)["volumeMounts"] if not one.get("readOnly")
    }
    claims = {
        claim["metadata"]["name"]
        for claim in workload["spec"].get("volumeClaimTemplates", [])
        if claim["spec"]["resources"]["requests"]["storage"]
    }
    bounded = {
        one["name"]
        for one in pod(workload).get("volumes", [])
        if one.get("emptyDir", {}).get("sizeLimit")
    }
    assert writable <= claims | bounded
    assert "hostPath" not in str(workload)


def test_mounts_do_not_nest(workload: Any) -> None:
    """The runtime could not make the inner folder in a volume that is read-only."""
    paths = [one["mountPath"] + "/" for one in container(workload)["volumeMounts"]]
    assert not [(a, b) for a in paths for b in paths if a != b and a.startswith(b)]


def test_secrets_are_named_and_not_written(workload: Any) -> None:
    """Passwords come by reference, and nodes get the certificate of Redis without its key."""
    for variable in container(workload).get("env", []):
        if "PASSWORD" in variable["name"] or "AUTH" in variable["name"]:
            assert variable["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "password"}
            assert "value" not in variable
    keys = {
        item["key"]
        for volume in pod(workload).get("volumes", [])
        for item in volume.get("secret", {}).get("items", [])
    }
    assert workload["metadata"]["name"] != "node" or keys == {"ca.crt"}


def test_the_cluster_checks_it_too() -> None:
    """The namespace has the restricted standard."""
    (labels,) = [
        one["metadata"]["labels"] for key, one in manifests().items() if key[0] == "Namespace"
    ]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def policies() -> dict[str, Any]:
    """Return the policies of the network by name."""
    return {
        name: one["spec"] for (kind, name), one in manifests().items() if kind == "NetworkPolicy"
    }


def reached_by(app: str) -> set[tuple[str, str]]:
    """Return the pods and ports that the pods of an application may connect to inside the namespace."""
    found = set()
    for policy in policies().values():
        if policy["podSelector"].get("matchLabels") == {"app": app}:
            for rule in policy.get("egress", []):
                for peer in rule["to"]:
                    if set(peer) == {"podSelector"}:
                        target = peer["podSelector"]["matchLabels"]["app"]
                        found |= {(target, str(port["port"])) for port in rule["ports"]}
    return found


def accepts(app: str) -> set[tuple[str, str]]:
    """Return the peers from which the pods of an application accept connections, and on which ports."""
    found = set()
    for policy in policies().values():
        if policy["podSelector"].get("matchLabels") == {"app": app}:
            for rule in policy.get("ingress", []):
                for peer in rule["from"]:
                    ((_, selector),) = peer.items()
                    ((_, name),) = selector["matchLabels"].items()
                    found |= {(name, str(port["port"])) for port in rule["ports"]}
    return found


def test_nothing_is_reached_that_is_not_named() -> None:
    """Clients reach HAProxy, HAProxy the nodes, the nodes Redis, and Redis nothing."""
    assert policies()["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert accepts("haproxy") == {("client", "http"), ("client", "grpc")}
    assert accepts("node") == {
        ("haproxy", "http"),
        ("haproxy", "grpc"),
        ("metrics", "metrics"),
    }
    assert accepts("redis") == {("node", "redis")}
    assert reached_by("haproxy") == {("node", "http"), ("node", "grpc")}
    assert reached_by("node") == {("redis", "redis")}
    assert reached_by("redis") == set()


def test_policies_name_ports_that_exist() -> None:
    """A policy with the name of another port would let nothing through."""
    for app in PODS:
        ports = {port["name"] for port in container(workloads()[app])["ports"]}
        assert {port for _, port in accepts(app)} <= ports


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.1.2.3", False),
        ("172.20.0.1", False),
        ("192.168.1.1", False),
        ("100.64.1.1", False),
        ("169.254.169.254", False),
        ("127.0.0.1", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fd00:ec2::254", False),
        ("fe80::1", False),
    ],
)
def test_images_come_from_public_addresses(address: str, allowed: bool) -> None:
    """Only https; neither the cluster nor a cloud's metadata."""
    (rule,) = policies()["image-hosts"]["egress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 443}]
    target = ipaddress.ip_address(address)
    blocks = [peer["ipBlock"] for peer in rule["to"]]
    reached = [
        target in ipaddress.ip_network(block["cidr"])
        and not any(target in ipaddress.ip_network(one) for one in block.get("except", []))
        for block in blocks
    ]
    assert any(reached) is allowed


@pytest.mark.parametrize(
    "file", ["kubernetes/Dockerfile", "sagemaker/Dockerfile", "sagemaker/Dockerfile.asgi"]
)
def test_an_image_is_built_on_a_digest(file: str) -> None:
    """Tags of others can be moved; AWS's own account is the exception, whose digests differ by region."""
    text = (ROOT / "deploy" / file).read_text()
    named = re.findall(r"^(?:FROM|ARG BASE=)[ ]?(\S+)", text, flags=re.MULTILINE)
    bases = [name for name in named if not name.startswith("$")]
    assert len(bases) == 1
    assert DIGEST.search(bases[0]) or bases[0].startswith("763104351884.dkr.ecr.")
