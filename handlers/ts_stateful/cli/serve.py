"""The run of `ts-stateful serve`. Needs the extra `server`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import ssl
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from ts_stateful.asgi.settings import Tls
from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.cli.serve_options import LOOPBACK, MAX_BODY_BYTES
from ts_stateful.config.manifest import read_manifest
from ts_stateful.config.schema import ConfigError
from ts_stateful.process.logs import LOG_FORMAT, LOG_LEVEL
from ts_stateful.serving.local import ServerFailed
from ts_stateful.serving.ports import Ports
from ts_stateful.serving.server import LocalServer
from ts_stateful.torchserve.guard import is_watched
from ts_stateful.torchserve.java import JavaMissing
from ts_stateful.torchserve.server import TorchServe, TorchServeSettings, settings_file

__all__ = ["make_torchserve", "serve"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(options: argparse.Namespace) -> int:
    """Serve until interrupted; return the exit status."""
    if problem := _problem(options):
        sys.stderr.write(f"error: {problem}\n")
        return 2
    # A shell may have started this with SIGINT ignored; with `nohup`, it is to outlive its terminal.
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        make = _asgi if options.front == "asgi" else make_torchserve
        with make(options) as server:
            _announce(server)
            server.wait()
    except KeyboardInterrupt:
        return 0
    except (ServerFailed, JavaMissing, ConfigError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stderr.write("error: the server exited by itself\n")
    return 1


def _problem(options: argparse.Namespace) -> str | None:
    """Return what is wrong with the options together."""
    files = [options.config, options.tls_certificate, options.tls_key, options.tls_client_ca]
    if options.front == "torchserve":
        files += [options.ts_config, options.log_config, *map(Path, options.models)]
        if len(options.models) > 1:
            return "the front torchserve takes one archive"
        archive = Path(options.models[0])
        if not (archive.suffix == ".mar" or archive.is_file() or (archive / "MAR-INF").is_dir()):
            return f"the front torchserve takes an archive: pack {archive} first, by `ts-stateful pack`"
        if (
            options.config
            or options.tls_certificate
            or {options.host, options.metrics_host} != {LOOPBACK}
        ):
            return "--config, --host and --tls-* are for the front asgi; pack the configuration by `ts-stateful pack --config`"
        if {options.admin_socket, options.admin_port, options.max_body_bytes} != {None}:
            return "--admin-socket, --admin-port and --max-body-bytes are for the front asgi"
    elif options.ts_config or options.log_config:
        return "--ts-config and --log-config are for the front torchserve"
    missing = [path for path in files if path is not None and not path.exists()]
    if missing:
        names = {options.ts_config: " (--ts-config)", options.log_config: " (--log-config)"}
        return f"no such file: {missing[0]}{names.get(missing[0], '')}"
    for name, folder in (
        ("--state-dir", options.state_dir),
        ("--log-file", options.log_file and options.log_file.parent),
        ("--admin-socket", options.admin_socket and options.admin_socket.parent),
    ):
        if folder is not None and (reason := _unwritable(folder)):
            return f"{name}: {folder} cannot be written: {reason}; name another folder"
    if (options.tls_certificate is None) != (options.tls_key is None):
        return "--tls-certificate and --tls-key belong together"
    if options.tls_client_ca is not None and options.tls_key is None:
        return "--tls-client-ca needs --tls-certificate and --tls-key"
    return None if options.tls_key is None else _tls_problem(options)


def _tls_problem(options: argparse.Namespace) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_certificate, options.tls_key, password="")
    except OSError as error:  # ssl.SSLError among them
        return (
            f"--tls-certificate {options.tls_certificate} and --tls-key {options.tls_key}: not a certificate and its"
            f" private key, in PEM and without a password ({error.strerror or error})"
        )
    try:
        if options.tls_client_ca is not None:
            context.load_verify_locations(options.tls_client_ca)
    except OSError as error:
        return f"--tls-client-ca {options.tls_client_ca}: no certificate in PEM ({error.strerror or error})"
    return None


def _unwritable(folder: Path) -> str | None:
    """Make the folder and a file in it; return the reason if that fails."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return error.strerror
    return None


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of both fronts."""
    chosen = {LOG_FORMAT: options.log_format, LOG_LEVEL: options.log_level}
    return {
        "ports": Ports(
            http=options.http_port,
            management=options.management_port,
            metrics=options.metrics_port,
            grpc=options.grpc_port,
            grpc_management=options.grpc_management_port,
        ),
        "log_file": options.log_file,
        "state_dir": options.state_dir,
        "environ": {name: value for name, value in chosen.items() if value is not None},
        "start_timeout_s": options.start_timeout,
    }


def _asgi(options: argparse.Namespace) -> LocalServer:
    tls = None
    if options.tls_certificate is not None:
        client_ca = options.tls_client_ca
        tls = Tls(
            certificate=str(options.tls_certificate.resolve()),
            key=str(options.tls_key.resolve()),
            client_ca=None if client_ca is None else str(client_ca.resolve()),
        )
    settings = AsgiServerSettings(
        tuple(options.models),
        name=options.name,
        config=options.config,
        host=options.host,
        metrics_host=options.metrics_host,
        max_body_bytes=options.max_body_bytes or MAX_BODY_BYTES,
        tls=tls,
        admin_socket=options.admin_socket,
        admin_port=options.admin_port,
        **_settings(options),
    )
    return AsgiServer(settings, echo=sys.stderr)


def make_torchserve(options: argparse.Namespace) -> LocalServer:
    """Return a TorchServe for the options of the command.

    Raises:
        ConfigError: what it is to serve is no archive.
    """
    archive = Path(options.models[0])
    packed = read_manifest(archive).name
    settings = TorchServeSettings(
        archive,
        config=options.ts_config or settings_file("config.properties"),
        log_config=options.log_config or settings_file("log4j2.xml"),
        name=options.name or packed,
        watch=is_watched(os.environ),
        **_settings(options),
    )
    return TorchServe(settings, echo=sys.stderr)


def _announce(server: LocalServer) -> None:
    sys.stdout.write(
        f"http        {server.http_url}/predictions/{server.name}\n"
        f"grpc        {server.grpc_url}\n"
        f"management  {server.management_url}\n"
        f"metrics     {server.metrics_url}/metrics\n"
    )
    for url in server.admin_urls:
        sys.stdout.write(f"admin       {url}\n")
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    for number in _SIGNALS:  # nothing interrupts the stop, which would leave processes
        # Not SIG_IGN: where the next signal is pending already, Python reports that as an error.
        signal.signal(number, lambda _signal, _frame: None)
    with contextlib.suppress(OSError):  # not by `sys.stderr`, which may be in the middle of a write
        os.write(2, b"stopping after the running turns\n")
    raise KeyboardInterrupt
