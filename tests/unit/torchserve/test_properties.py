"""The management API of a running TorchServe, as its process reveals it."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.support.certificates import NO_OPENSSL, has_openssl, self_signed
from tests.support.worker import eventually
from ts_stateful.torchserve.properties import management_of, read_key, read_properties


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Processes that end with the test."""
    with ExitStack() as stack:
        yield stack


def server(stack: ExitStack, folder: Path, arguments: list[str], **environ: str) -> psutil.Process:
    """Start a process in place of TorchServe's Java, with these arguments, in this folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    found = psutil.Process(process.pid)
    eventually(lambda: found.cmdline()[3:] == arguments and found.cwd() == str(folder))
    return found


def config(folder: Path, *lines: str) -> list[str]:
    """Write a config.properties; return the arguments that name it."""
    (folder / "config.properties").write_text("\n".join(lines))
    return ["-f", "config.properties"]


def test_the_address_is_that_of_the_file(stack: ExitStack, tmp_path: Path) -> None:
    """The last line counts; comments do not."""
    lines = [
        "management_address=http://127.0.0.1:1",
        " management_address = http://127.0.0.1:2",
        "#x=1",
    ]
    found = management_of(server(stack, tmp_path, config(tmp_path, *lines)))
    assert found.url == "http://127.0.0.1:2"


def test_the_address_has_a_default(stack: ExitStack, tmp_path: Path) -> None:
    """Without a file, and with one that cannot be read."""
    for arguments in ([], ["-f"], ["-f", "missing.properties"]):
        assert management_of(server(stack, tmp_path, arguments)).url == "http://127.0.0.1:8081"


def test_an_address_of_all_interfaces_is_reached_on_loopback(
    stack: ExitStack, tmp_path: Path
) -> None:
    """A request to 0.0.0.0 would leave it to the system."""
    for host in ("0.0.0.0", "[::]"):
        arguments = config(tmp_path, f"management_address=http://{host}:9")
        assert management_of(server(stack, tmp_path, arguments)).url == "http://127.0.0.1:9"


@pytest.mark.parametrize(("allowed", "port"), [("true", 2), ("false", 1)])
def test_the_environment_overrides_the_file_where_it_may(
    stack: ExitStack, tmp_path: Path, allowed: str, port: int
) -> None:
    """TorchServe reads TS_MANAGEMENT_ADDRESS only with enable_envvars_config."""
    arguments = config(
        tmp_path, "management_address=http://127.0.0.1:1", f"enable_envvars_config={allowed}"
    )
    environ = {"TS_MANAGEMENT_ADDRESS": "http://127.0.0.1:2"}
    found = management_of(server(stack, tmp_path, arguments, **environ))
    assert found.url == f"http://127.0.0.1:{port}"


def test_the_variable_of_the_file_takes_precedence(stack: ExitStack, tmp_path: Path) -> None:
    """So it is in TorchServe."""
    (tmp_path / "other.properties").write_text("management_address=http://127.0.0.1:3\n")
    arguments = config(tmp_path, "management_address=http://127.0.0.1:1")
    environ = {"TS_CONFIG_FILE": str(tmp_path / "other.properties")}
    found = management_of(server(stack, tmp_path, arguments, **environ))
    assert found.url == "http://127.0.0.1:3"


@pytest.mark.skipif(not has_openssl(), reason=NO_OPENSSL)
def test_a_certificate_for_other_names_is_trusted(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of TorchServe use another name or authority; refusing it filled TorchServe's log, once a second.

    No proxy is asked, which could read the key. The key is the one of the moment: keys expire, and their operator renews them.
    """
    keys = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"models": [{"modelName": "chat"}]}')

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    certificate = self_signed(tmp_path / "cert.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, f"{certificate}.key")
    listener = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    listener.socket = tls.wrap_socket(listener.socket, server_side=True)
    threading.Thread(target=listener.serve_forever, args=(0.01,)).start()
    stack.callback(listener.shutdown)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    arguments = config(tmp_path, f"management_address=https://127.1:{listener.server_port}")
    with closing(management_of(server(stack, tmp_path, arguments))) as management:
        for key in ("one", "two"):
            (tmp_path / "key_file.json").write_text(f'{{"management": {{"key": "{key}"}}}}')
            assert management.models() == ["chat"]
    assert keys == ["Bearer one", "Bearer two"]


def test_a_unix_socket_has_no_url(stack: ExitStack, tmp_path: Path) -> None:
    """The error names the address."""
    arguments = config(tmp_path, "management_address=unix:/tmp/management.sock")
    with pytest.raises(ValueError, match="unix"):
        management_of(server(stack, tmp_path, arguments))


def test_a_key_is_read_where_torchserve_writes_it(tmp_path: Path) -> None:
    """There is none without token authorization, or in a file of another format."""
    assert read_key(tmp_path, "management") is None
    for text in ("{", "[]", '{"management": {}}', '{"management": 1}'):
        (tmp_path / "key_file.json").write_text(text)
        assert read_key(tmp_path, "management") is None
    (tmp_path / "key_file.json").write_text('{"management": {"key": "secret"}}')
    assert read_key(tmp_path, "management") == "secret"
    assert read_properties(None) == {}
