"""The overlay deploy/kubernetes/gateway, with a gateway in the place of HAProxy, and what clients have to do for it."""

from __future__ import annotations

import shutil
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.crds import validate
from tests.support.manifests import KUBERNETES, container
from ts_stateful.client import connect

ROUTES = ("HTTPRoute", "GRPCRoute")


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    """Return the objects of the overlay, by kind and name."""
    command = shutil.which("kubectl")
    if command is None:
        pytest.skip("needs kubectl")
    done = subprocess.run(
        [command, "kustomize", KUBERNETES / "gateway"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}


def test_the_overlay_is_the_base_without_haproxy(objects: dict[tuple[str, str], Any]) -> None:
    """Each object is valid, and no name or policy of HAProxy is left."""
    for one in objects.values():
        validate(one)
    assert "haproxy" not in str(objects)
    assert ("StatefulSet", "node") in objects
    assert {kind for kind, _ in objects} >= {*ROUTES, "Gateway", "NetworkPolicy"}


def test_routes_lead_to_the_nodes(objects: dict[tuple[str, str], Any]) -> None:
    """By ports of the service of clients, from a listener of the Gateway, which clients' namespaces may reach."""
    service = objects["Service", "chat"]["spec"]
    node = objects["StatefulSet", "node"]
    assert service["selector"] == node["spec"]["selector"]["matchLabels"]
    names = {port["name"] for port in container(node)["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= names
    ports = {port["port"]: port for port in service["ports"]}
    listeners = {one["name"] for one in objects["Gateway", "chat"]["spec"]["listeners"]}
    for kind in ROUTES:
        spec = objects[kind, "chat"]["spec"]
        assert {one["sectionName"] for one in spec["parentRefs"]} <= listeners
        (rule,) = spec["rules"]
        (backend,) = rule["backendRefs"]
        port = ports[backend["port"]]
        assert (port["name"] == "grpc") is (kind == "GRPCRoute")
        assert (port["appProtocol"] == "kubernetes.io/h2c") is (kind == "GRPCRoute")
    (rule, _) = objects["NetworkPolicy", "node"]["spec"]["ingress"]
    labels = rule["from"][0]["namespaceSelector"]["matchLabels"]
    assert labels == {"torchserve-stateful/access": "client"}


def test_a_misspelled_route_is_not_valid(objects: dict[tuple[str, str], Any]) -> None:
    """The schema refuses fields that it does not know, and cookies of another kind."""
    route = objects["HTTPRoute", "chat"]
    for wrong in ({"sessionNames": "a"}, {"type": "Query"}, {"absoluteTimeout": "1 hour"}):
        (rule,) = route["spec"]["rules"]
        broken = {**rule, "sessionPersistence": {**rule["sessionPersistence"], **wrong}}
        with pytest.raises(jsonschema.ValidationError):
            validate({**route, "spec": {**route["spec"], "rules": [broken]}})


def test_the_client_library_keeps_a_gateways_cookie() -> None:
    """Over HTTP, so all of its requests go to the node that the first one went to."""
    seen: list[str | None] = []

    class Gateway(BaseHTTPRequestHandler):
        """A gateway that sets its cookie."""

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            """Answer `hello`."""
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers["Cookie"])
            body = b'{"code": "internal", "message": "no model here"}'
            self.send_response(500)
            self.send_header("Set-Cookie", "ts-stateful-node=n1; Path=/; HttpOnly")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            with connect(url, model="chat") as client:
                for _ in range(2):
                    with pytest.raises(Exception, match="no model here"):
                        client.hello()
        finally:
            server.shutdown()
            thread.join()
    assert seen[0] is None
    assert set(seen[1:]) == {"ts-stateful-node=n1"}
