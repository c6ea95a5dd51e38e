"""`python -m ts_stateful.torchserve.serve`: TorchServe in the foreground, with one archive, on loopback."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ts_stateful.torchserve.guard import is_watched
from ts_stateful.torchserve.java import JavaMissing
from ts_stateful.torchserve.ports import Ports
from ts_stateful.torchserve.server import ServerFailed, TorchServe, TorchServeSettings

__all__ = ["main"]

_EPILOG = """\
Prints the server's addresses, and the line `ready` when the model answers. The log goes to standard error.
Ctrl-C or SIGTERM stops TorchServe, its workers and its engines. If TorchServe loses the worker of a model, which a gRPC
client can cause, the server starts another one; TS_STATEFUL_WATCH=false turns that off.

example:
  ./archive.sh --model examples/shapes/model
  python -m ts_stateful.torchserve.serve build/chat.mar
  curl http://127.0.0.1:8080/predictions/chat --json '{"prompt": "Hello"}'
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted; return 0, or 1 if TorchServe does not start or exits by itself, or 2 if a file is missing."""
    options = _parser().parse_args(arguments)
    for path in (options.archive, options.ts_config, options.log_config):
        if not path.exists():
            sys.stderr.write(f"error: no such file: {path}\n")
            return 2
    # A shell may have started this with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    settings = TorchServeSettings(
        options.archive,
        config=options.ts_config,
        log_config=options.log_config,
        name=options.name,
        ports=Ports(
            http=options.http_port,
            management=options.management_port,
            metrics=options.metrics_port,
            grpc=options.grpc_port,
            grpc_management=options.grpc_management_port,
        ),
        log_file=options.log_file,
        start_timeout_s=options.start_timeout,
        watch=is_watched(os.environ),
    )
    try:
        with TorchServe(settings, echo=sys.stderr) as server:
            _announce(server)
            server.wait()
    except KeyboardInterrupt:
        return 0
    except (ServerFailed, JavaMissing) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stderr.write("error: TorchServe exited by itself\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ts_stateful.torchserve.serve",
        description="Serve an archive with TorchServe on 127.0.0.1, in the foreground.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("archive", type=Path, help="a .mar file or the folder of a no-archive")
    parser.add_argument("--name", default="chat", help="name of the model (default: %(default)s)")
    for flag, default in (
        ("--http-port", 8080),
        ("--management-port", 8081),
        ("--metrics-port", 8082),
        ("--grpc-port", 7070),
        ("--grpc-management-port", 7071),
    ):
        parser.add_argument(
            flag, type=int, default=default, metavar="PORT", help="default: %(default)s; 0: any"
        )
    parser.add_argument(
        "--ts-config",
        type=Path,
        default=Path("config.properties"),
        help="TorchServe's settings; its addresses are replaced (default: %(default)s)",
    )
    parser.add_argument(
        "--log-config",
        type=Path,
        default=Path("log4j2.xml"),
        help="TorchServe's logging (default: %(default)s)",
    )
    parser.add_argument("--log-file", type=Path, help="also append the log to this file")
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=1200.0,
        metavar="SECONDS",
        help="limit for loading the model (default: %(default)g)",
    )
    return parser


def _announce(server: TorchServe) -> None:
    sys.stdout.write(
        f"http        {server.http_url}/predictions/{server.name}\n"
        f"grpc        {server.grpc_url}\n"
        f"management  {server.management_url}\n"
        f"metrics     {server.metrics_url}/metrics\n"
        "ready\n"
    )
    sys.stdout.flush()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
