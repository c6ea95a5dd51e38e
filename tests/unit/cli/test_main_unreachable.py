"""The remedy that the command names where it reaches a server, but cannot talk to it."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import NO_OPENSSL, has_openssl, self_signed

Run = Callable[..., int]


class _Answers(socketserver.BaseRequestHandler):
    """A server without TLS, which does not understand the beginning of a handshake."""

    def handle(self) -> None:
        self.request.recv(65_536)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class _Closes(socketserver.BaseRequestHandler):
    """A server with TLS, which does not understand a request in clear."""

    def handle(self) -> None:
        self.request.recv(65_536)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a handshake that the client has given up."""


@contextmanager
def _serving(
    handler: type[socketserver.BaseRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("scheme", "handler", "remedy"),
    [
        ("https", _Answers, "it has no TLS: name it with http:// or grpc://"),
        ("grpcs", _Answers, "it has no TLS: name it with http:// or grpc://"),
        ("http", _Closes, "if it has TLS, name it with https://"),
        ("grpc", _Closes, "if it has TLS, name it with grpcs://"),
    ],
)
def test_tls_on_one_side_alone_is_named(
    scheme: str,
    handler: type[socketserver.BaseRequestHandler],
    remedy: str,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server is there, so none is to be started."""
    with _serving(handler) as address:
        assert run("chat", "--url", f"{scheme}://{address}", lines="") == 1
    assert capsys.readouterr().err.endswith(f"; {remedy}\n")


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_certificate_that_is_not_trusted_asks_for_its_file(
    scheme: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason; gRPC ends it with `OK`."""
    if not has_openssl():
        pytest.skip(NO_OPENSSL)
    certificate = self_signed(tmp_path / "tls.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    tls.load_cert_chain(certificate, f"{certificate}.key")
    with _serving(_Closes, tls) as address:
        assert run("chat", "--url", f"{scheme}://{address}", lines="") == 1
    printed = capsys.readouterr().err
    assert "self" in printed.split("(")[1]
    assert printed.endswith("; trust its certificate, or that of its issuer, with --ca-file\n")


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_missing_file_of_certificates_is_named(
    scheme: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library of TLS names none."""
    missing = tmp_path / "ca.pem"
    assert run("chat", "--url", f"{scheme}://127.0.0.1:1", "--ca-file", str(missing), lines="") == 1
    assert capsys.readouterr().err == f"error: {missing}: No such file or directory\n"
