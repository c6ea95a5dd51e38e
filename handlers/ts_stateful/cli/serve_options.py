"""The options and the help of `ts-stateful serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ts_stateful.cli.numbers import positive, whole

__all__ = ["EPILOG", "LOOPBACK", "add_options"]

LOOPBACK = "127.0.0.1"

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
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="what to serve; the front torchserve takes one archive",
    )
    parser.add_argument(
        "--front",
        choices=("asgi", "torchserve"),
        default="asgi",
        help="the server of requests (default: %(default)s)",
    )
    parser.add_argument("--name", help="name of the first model (default: the archive's, or chat)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a model-config.yaml for the first model (asgi)"
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="FOLDER",
        help="keeps logs and the default store after the end (default: they are removed)",
    )
    parser.add_argument(
        "--log-file", type=Path, metavar="FILE", help="also append the log to this file"
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        help="of the logs (default: $TS_STATEFUL_LOG_FORMAT, or text)",
    )
    parser.add_argument(
        "--log-level",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="least level of the logs (default: $TS_STATEFUL_LOG_LEVEL, or INFO)",
    )
    parser.add_argument(
        "--start-timeout",
        type=positive,
        default=1200.0,
        metavar="SECONDS",
        help="limit for loading the models (default: %(default)g)",
    )
    _add_ports(parser)
    _add_limits(parser)
    torchserve = parser.add_argument_group("torchserve")
    torchserve.add_argument(
        "--ts-config",
        type=Path,
        metavar="FILE",
        help="TorchServe's settings; its addresses are replaced (default: config.properties here, else the package's)",
    )
    torchserve.add_argument(
        "--log-config",
        type=Path,
        metavar="FILE",
        help="TorchServe's logging (default: log4j2.xml here, else the package's)",
    )


def _add_ports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("addresses (a port of 0 is any free one)")
    group.add_argument(
        "--host",
        default=LOOPBACK,
        help="of the HTTP and gRPC ports (asgi; default: %(default)s). The others are on 127.0.0.1",
    )
    group.add_argument(
        "--metrics-host", default=LOOPBACK, help="of the metrics port (asgi; default: %(default)s)"
    )
    for flags, default in (
        (("--http-port", "--port"), 8080),
        (("--management-port",), 8081),
        (("--metrics-port",), 8082),
        (("--grpc-port",), 7070),
        (("--grpc-management-port",), 7071),
    ):
        only = " (torchserve)" if default == 7071 else ""
        group.add_argument(
            *flags,
            type=whole(0, 65_535),
            default=default,
            metavar="PORT",
            help=f"default: %(default)s{only}",
        )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("asgi")
    group.add_argument(
        "--max-body-bytes",
        type=whole(1),
        default=28_000_000,
        metavar="BYTES",
        help="longest request (default: %(default)s)",
    )
    group.add_argument(
        "--admin-socket",
        type=Path,
        metavar="PATH",
        help="Unix socket of the administration (default: admin.sock in --state-dir, or a temporary one)",
    )
    group.add_argument(
        "--admin-port",
        type=whole(0, 65_535),
        metavar="PORT",
        help="also on this port of 127.0.0.1, with the token in $TS_STATEFUL_ADMIN_TOKEN (default: none)",
    )
    group.add_argument(
        "--tls-certificate", type=Path, metavar="FILE", help="PEM; serve HTTP and gRPC over TLS"
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM; its private key")
    group.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="PEM; take only clients with a certificate that this one has signed (mutual TLS)",
    )
