"""The files in deploy/compose: valid by Compose's schema, and in agreement with the repository. No Docker is needed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.haproxy import CONFIG, NO_HAPROXY, check, haproxy_binary
from tests.support.manifests import KUBERNETES
from tests.support.ports import free_port
from tests.support.prometheus import NO_PROMETHEUS, prometheus_binary
from tests.support.worker import eventually
from ts_stateful.asgi.source import open_source
from ts_stateful.cli.parser import build_parser
from ts_stateful.config.schema import load_config
from ts_stateful.frontend.assemble import check_model
from ts_stateful.store.backends.open import open_store
from ts_stateful.store.base import StoreUnavailable

COMPOSE = KUBERNETES.parent / "compose"
FILES = ["two-nodes.yml", "open-webui.yml"]
_PASSWORD = "0123456789abcdef"
_NODE = build_parser().parse_args(["serve", "model"])  # with the ports of the front


def services(name: str) -> dict[str, Any]:
    """The services of a file."""
    found: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())["services"]
    return found


def two_nodes(name: str) -> dict[str, Any]:
    """A service of two-nodes.yml."""
    return dict(services("two-nodes.yml")[name])


def filled(text: str) -> str:
    """A text with the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.mark.parametrize("name", FILES)
def test_compose_takes_the_file(name: str) -> None:
    """By the schema of the Compose specification."""
    command = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [command, "--builtin-schema", "vendor.compose-spec", COMPOSE / name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", FILES)
def test_everything_that_a_file_names_exists(name: str) -> None:
    """Sources of mounts, build contexts, volumes, and services that others wait for."""
    document = yaml.safe_load((COMPOSE / name).read_text())
    for service in document["services"].values():
        for mount in service.get("volumes", ()):
            source, target, *_ = filled(mount).split(":")
            assert target.startswith("/")
            exists = (COMPOSE / source).exists() if "/" in source else source in document["volumes"]
            assert exists, mount
        if "build" in service:
            context = COMPOSE / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in document["services"][other]


@pytest.mark.parametrize("name", FILES)
def test_ports_are_on_loopback_and_secrets_are_asked_for(name: str) -> None:
    """Compose refuses to start without a password."""
    text = (COMPOSE / name).read_text()
    for service in services(name).values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for variable in re.findall(r"\$\{(\w*PASSWORD)", text):
        assert f"${{{variable}:?}}" in text


@pytest.mark.parametrize("name", FILES)
def test_images_have_versions(name: str) -> None:
    """And the digests of deploy/kubernetes, where that has the image."""
    base = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())
    digests = {one["name"]: one["digest"] for one in base["images"]}
    for service in services(name).values():
        image, _, digest = service["image"].partition("@")
        if "build" in service:
            continue
        repository, tag = image.split(":")
        assert re.search(r"\d+\.\d+\.\d+$", tag)
        assert digest == digests.get(repository, "")


@pytest.mark.parametrize(("name", "node"), [(FILES[0], "node-1"), (FILES[1], "node")])
def test_the_command_of_a_node_is_valid(name: str, node: str) -> None:
    """After the image's entrypoint: a model and a configuration that are mounted, which the server can read."""
    service = services(name)[node]
    text = (KUBERNETES / "Dockerfile").read_text()
    entry = json.loads(re.findall("^ENTRYPOINT (.*)$", text, re.M)[0])
    options = build_parser().parse_args([*entry[3:], *service["command"]])
    mounts = dict(filled(mount).split(":")[1::-1] for mount in service["volumes"])
    (model,) = options.models
    config = None if options.config is None else COMPOSE / mounts[str(options.config)]
    source = open_source(str(COMPOSE / mounts[model]), COMPOSE, name=options.name, config=config)
    settings = load_config(source.document)
    check_model(settings, Path(source.folder), torchserve=False)
    assert source.name == "chat"
    assert settings.store is not None
    if config is not None:
        assert settings.store.url == "redis://redis:6379/0"
        assert service["environment"][settings.store.password_env] == "${REDIS_PASSWORD:?}"


def test_haproxy_finds_the_nodes() -> None:
    """By their names and ports, with its own configuration."""
    proxy = two_nodes("haproxy")
    nodes = {name for name in services("two-nodes.yml") if name.startswith("node-")}
    environ = dict(proxy["environment"])
    for number, name in enumerate(sorted(nodes), start=1):
        assert environ[f"TS_NODE_{number}"] == f"{name}:{_NODE.http_port}"
        assert environ[f"TS_NODE_{number}_GRPC"] == f"{name}:{_NODE.grpc_port}"
    listens = [f":{port.rpartition(':')[2]}" for port in proxy["ports"]]
    assert listens == [environ["TS_HTTP"], environ["TS_GRPC"]]
    assert set(proxy["depends_on"]) == nodes
    binary = haproxy_binary()
    if binary is None:
        pytest.skip(NO_HAPROXY)
    here = {key: re.sub(r"^node-\d", "127.0.0.1", value) for key, value in environ.items()}
    done = check(binary, CONFIG, **here)
    assert done.returncode == 0, done.stderr


def test_prometheus_reads_the_metrics_of_the_nodes() -> None:
    """With a command that the server takes, and Grafana asks it."""
    (targets,) = yaml.safe_load((COMPOSE / "targets.yml").read_text())
    nodes = [name for name in services("two-nodes.yml") if name.startswith("node-")]
    assert targets["targets"] == [f"{name}:{_NODE.metrics_port}" for name in nodes]
    assert two_nodes("grafana")["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"
    binary = prometheus_binary()
    if binary is None:
        pytest.skip(NO_PROMETHEUS)
    command = [binary, *two_nodes("prometheus")["command"], "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_redis_takes_the_store_of_the_nodes(tmp_path: Path) -> None:
    """Its command runs, with another port, and lets in the password alone."""
    binary = shutil.which("redis-server", path=f"/usr/bin:/usr/local/bin:{os.defpath}")
    if binary is None:
        pytest.skip("no redis-server: apt-get install redis-server")
    service, port = two_nodes("redis"), free_port()
    (script,) = service["command"]
    script = script.replace("$$", "$").replace("server -", f"server - --port {port}")
    environ = {"PATH": f"{Path(binary).parent}:{os.defpath}", "REDISCLI_AUTH": _PASSWORD}
    with (
        subprocess.Popen(
            [*service["entrypoint"], script], cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL
        ) as process,
        contextlib.closing(open_store(f"redis://:{_PASSWORD}@127.0.0.1:{port}/0")) as store,
        contextlib.closing(open_store(f"redis://127.0.0.1:{port}/0")) as stranger,
    ):

        def takes() -> bool:
            with contextlib.suppress(StoreUnavailable):
                return store.create("sessions/a/00000000", b"x", ttl_s=100)
            return False

        try:
            eventually(takes)
            with pytest.raises(StoreUnavailable):
                stranger.get("sessions/a/00000000")
        finally:
            process.kill()
