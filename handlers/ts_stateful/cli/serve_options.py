"""The options and the help of `ts-stateful serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ts_stateful.cli.numbers import filled, positive, whole

__all__ = ["EPILOG", "LOOPBACK", "MAX_BODY_BYTES", "add_options"]

LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 28_000_000

EPILOG = """\
A model is a .mar file, the folder of an archive, the folder of a model, or the id of a model on the hub (owner/name).
Prints the server's addresses, and the line `ready` when the model answers. The log goes to standard error. Ctrl-C or SIGTERM
finishes the running turns and stops all processes.

The front `asgi` is one Python process without Java. With `torchserve` the archive is served by TorchServe: if it loses
the worker of a model, which a gRPC client can cause, the server starts another one; TS_STATEFUL_WATCH=false turns that off.

examples:
  ts-stateful serve build/chat.mar
  ts-stateful serve /models/llava-1.5-7b-hf --config model-config.yaml --port 9000
  ts-stateful serve build/chat.mar --front torchserve
  curl http://127.0.0.1:8080/predictions/chat --json '{"prompt": "Hello"}'

exit status: 0 stopped, 1 the server does not start, or exited by itself, 2 wrong usage.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    text = "what to serve; the front torchserve takes one archive"
    add("models", nargs="+", metavar="MODEL", help=text)
    text = "the server of requests (default: %(default)s)"
    add("--front", choices=("asgi", "torchserve"), default="asgi", help=text)
    add("--name", help="name of the first model (default: the archive's, or chat)")
    text = "a model-config.yaml for the first model (asgi)"
    add("--config", type=Path, metavar="FILE", help=text)
    text = "keeps logs and the default store after the end (default: they are removed)"
    add("--state-dir", type=Path, metavar="FOLDER", help=text)
    add("--log-file", type=Path, metavar="FILE", help="also append the log to this file")
    text = "of the logs (default: $TS_STATEFUL_LOG_FORMAT, or text)"
    add("--log-format", choices=("text", "json"), help=text)
    text = "least level of the logs (default: $TS_STATEFUL_LOG_LEVEL, or INFO)"
    add("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help=text)
    text = "limit for loading the models (default: %(default)g)"
    add("--start-timeout", type=positive, default=1200.0, metavar="SECONDS", help=text)
    _add_ports(parser)
    _add_limits(parser)
    add = parser.add_argument_group("torchserve").add_argument
    text = "TorchServe's settings; its addresses are replaced (default: config.properties here, else the package's)"
    add("--ts-config", type=Path, metavar="FILE", help=text)
    text = "TorchServe's logging (default: log4j2.xml here, else the package's)"
    add("--log-config", type=Path, metavar="FILE", help=text)


def _add_ports(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("addresses (a port of 0 is any free one)").add_argument
    text = "of the HTTP and gRPC ports (asgi; default: %(default)s). The others are on 127.0.0.1"
    add("--host", type=filled, default=LOOPBACK, help=text)
    text = "of the metrics port (asgi; default: %(default)s)"
    add("--metrics-host", type=filled, default=LOOPBACK, help=text)
    for flags, default in (
        (("--http-port", "--port"), 8080),
        (("--management-port",), 8081),
        (("--metrics-port",), 8082),
        (("--grpc-port",), 7070),
        (("--grpc-management-port",), 7071),
    ):
        text = f"default: %(default)s{' (torchserve)' if default == 7071 else ''}"
        add(*flags, type=whole(0, 65_535), default=default, metavar="PORT", help=text)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("asgi").add_argument
    text = f"longest request (default: {MAX_BODY_BYTES})"
    add("--max-body-bytes", type=whole(1), metavar="BYTES", help=text)
    text = (
        "Unix socket of the administration (default: admin.sock in --state-dir, or a temporary one)"
    )
    add("--admin-socket", type=Path, metavar="PATH", help=text)
    text = (
        "also on this port of 127.0.0.1, with the token in $TS_STATEFUL_ADMIN_TOKEN (default: none)"
    )
    add("--admin-port", type=whole(0, 65_535), metavar="PORT", help=text)
    text = "PEM; serve HTTP and gRPC over TLS"
    add("--tls-certificate", type=Path, metavar="FILE", help=text)
    add("--tls-key", type=Path, metavar="FILE", help="PEM; its private key")
    text = "PEM; take only clients with a certificate that this one has signed (mutual TLS)"
    add("--tls-client-ca", type=Path, metavar="FILE", help=text)
