"""Servers without TorchServe in other forms: TLS, several models, a model's folder, and a place for what stays."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import pytest
import yaml

from tests.e2e.server import ROOT, SHAPES_MODEL, START_TIMEOUT_S, log_path, pack
from tests.e2e.speak import DEADLINE_S, DIALOGUE, SCENE
from tests.support.certificates import NO_OPENSSL, has_openssl, self_signed
from tests.support.ports import free_ports
from tests.support.weights import NO_WEIGHTS
from ts_stateful.asgi.settings import Tls
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.client import connect
from ts_stateful.pb.inference_pb2 import PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub
from ts_stateful.serving.local import ServerFailed

_CONFIG = ROOT / "model-config.yaml"
_HELLO = {"type": "hello"}
_COUNTER = ROOT / "examples" / "counter"


def server(*models: Path, name: str, **settings: object) -> AsgiServer:
    """A server on free ports, not started yet."""
    return AsgiServer(
        AsgiServerSettings(
            tuple(map(str, models)),
            ports=free_ports(),
            log_file=log_path(name),
            start_timeout_s=START_TIMEOUT_S,
            **settings,  # type: ignore[arg-type]
        )
    )


def counter(folder: Path) -> Path:
    """The recurrent example as one folder."""
    folder.mkdir()
    for path in (_COUNTER / "model-config.yaml", *(_COUNTER / "model").iterdir()):
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.skipif(not has_openssl(), reason=NO_OPENSSL)
def test_two_models_over_tls_for_known_clients_alone(tmp_path: Path) -> None:
    """HTTP and gRPC. Each model is reached by its name; a client without a certificate reaches none."""
    pem = self_signed(tmp_path / "server.pem", "localhost")
    own, key = str(pem), f"{pem}.key"
    tls = Tls(certificate=own, key=key, client_ca=own)
    models = (SHAPES_MODEL, counter(tmp_path / "counter"))
    with server(*models, name="asgi-tls", config=_CONFIG, tls=tls) as running:
        stranger, known = (ssl.create_default_context(cafile=own) for _ in range(2))
        known.load_cert_chain(own, key)
        base = running.http_url
        assert base.startswith("https://")
        with httpx.Client(verify=known, trust_env=False, timeout=DEADLINE_S) as client:
            names = [one["modelName"] for one in client.get(f"{base}/models").json()["models"]]
            assert names == ["chat", "counter"]
            for name, image in (("chat", 8), ("counter", 0)):
                hello = client.post(f"{base}/predictions/{name}", json=_HELLO).json()
                assert (hello["profile"], hello["limits"]["images"]) == ("asgi", image)
            step = {"inputs": [{"name": "number", "data": [5]}]}
            answer = client.post(f"{base}/predictions/counter", json=step).json()
            assert answer["outputs"][0]["data"] == [5]
        with (
            httpx.Client(verify=stranger, trust_env=False, timeout=DEADLINE_S) as client,
            pytest.raises(httpx.TransportError),
        ):
            client.get(f"{base}/ping")
        trusted, private = pem.read_bytes(), Path(key).read_bytes()
        credentials = grpc.ssl_channel_credentials(trusted, private, trusted)
        address = running.grpc_url.removeprefix("grpcs://")
        with grpc.secure_channel(address, credentials) as channel:
            stub = InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]
            message = PredictionsRequest(model_name="chat", input={"data": b'{"type": "hello"}'})
            assert b"asgi" in stub.Predictions(message, timeout=DEADLINE_S).prediction


def test_scripts_of_allowed_pages_read_answers(tmp_path: Path) -> None:
    """A browser asks first. Pages of other origins are refused both times."""
    folder = counter(tmp_path / "counter")
    config = folder / "model-config.yaml"
    document = yaml.safe_load(config.read_text())
    document["handler"]["allowedOrigins"] = ["https://app.example"]
    config.write_text(yaml.safe_dump(document))
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with (
        server(folder, name="asgi-pages") as running,
        httpx.Client(base_url=running.http_url, trust_env=False, timeout=DEADLINE_S) as client,
    ):
        path, step = "/invocations", {"inputs": [{"name": "number", "data": [5]}]}
        for origin, status in (("https://app.example", 200), ("https://evil.example", 400)):
            page = {"Origin": origin}
            preflight = client.options(path, headers={**page, **asks})
            answer = client.post(path, json=step, headers=page)
            assert (preflight.status_code, answer.status_code) == (status, status)
            for response in (preflight, answer):
                seen = response.headers.get("access-control-allow-origin")
                assert seen == (origin if status == 200 else None)
        assert "x-ts-stateful-ignored" in answer.headers["access-control-expose-headers"]


def test_sessions_continue_at_the_next_server(tmp_path: Path) -> None:
    """With a folder for what stays; the command prints `ready`, and ends with SIGTERM. Logs stay as well."""
    state, archive = tmp_path / "state", pack(tmp_path / "archive")
    ports = free_ports()
    command = [sys.executable, "-m", "ts_stateful.cli", "serve", str(archive)]
    command += ["--http-port", str(ports.http), "--grpc-port", str(ports.grpc)]
    command += ["--management-port", str(ports.management), "--metrics-port", str(ports.metrics)]
    command += ["--state-dir", str(state)]
    session = ""
    for number, (question, answer) in enumerate(DIALOGUE[:2]):
        with (
            log_path(f"asgi-state-{number}").open("w") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        ):
            assert process.stdout is not None
            try:
                printed = "".join(iter(process.stdout.readline, "ready\n"))
                assert f"http        http://127.0.0.1:{ports.http}/predictions/chat" in printed
                with connect(f"grpc://127.0.0.1:{ports.grpc}") as connection:
                    if not session:
                        session = connection.open(images=[SCENE]).session_id
                    reply = connection.attach(session).prompt(question)
                    assert reply.result() == answer
            finally:
                process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
    assert (state / "store" / "sessions" / session).is_dir()
    assert list((state / "logs").glob("*-engine-*.log"))


def test_a_model_that_does_not_load_is_reported(tmp_path: Path) -> None:
    """By its own words, in a line; its logs stay, and nothing is left running."""
    (tmp_path / "config.json").write_text('{"model_type": "none"}')
    (tmp_path / "model.safetensors").write_bytes(NO_WEIGHTS)
    made = server(tmp_path, name="asgi-broken")
    with pytest.raises(ServerFailed, match="none") as failed:
        made.start()
    (line,) = str(failed.value).splitlines()
    assert list(Path(line.rpartition(" are in ")[2]).glob("*-engine-0.log"))
    assert made.engines() == []
