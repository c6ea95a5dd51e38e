"""`ts-stateful sagemaker-local`: an endpoint like SageMaker's on this machine.

Owns its options and its help; the endpoint is `ts_stateful.sagemaker_local`, whose libraries a client does without.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ts_stateful.cli.numbers import positive, whole
from ts_stateful.cli.terminal import Terminal
from ts_stateful.protocol.sagemaker import is_endpoint_name

__all__ = ["EPILOG", "Unservable", "add_options", "serve"]

_MAX_INSTANCES = 16

EPILOG = """\
Starts so many TorchServes of one archive and, in front of them, what a client sees of SageMaker: InvokeEndpoint and
InvokeEndpointWithResponseStream, sessions that stay on the instance that opened them, the service's errors and its limits.
Prints the line `ready` when it answers. Ctrl-C or SIGTERM stops all of it. docs/sagemaker.md says what it does as the service
does, and what not. Needs `pip install 'torchserve-stateful[server,sagemaker]'`.

examples:
  make mar
  ts-stateful sagemaker-local --instances 2 --port 9000 --endpoint demo
  in another terminal, by this package's client:
    ts-stateful chat --url 'sagemaker://demo?endpoint_url=http://127.0.0.1:9000' --image examples/shapes/scene.png
  or by boto3:
    boto3.client("sagemaker-runtime", endpoint_url="http://127.0.0.1:9000", region_name="us-east-1",
                 aws_access_key_id="any", aws_secret_access_key="any")
  which instances are in service, and how many sessions they have:
    curl http://127.0.0.1:9000/ping
"""


class Unservable(Exception):
    """What is to be served cannot be; the message says why."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them."""
    parser.add_argument(
        "--instances",
        type=whole(1, _MAX_INSTANCES),
        default=2,
        metavar="N",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--port",
        type=whole(0, 65535),
        default=9000,
        help="of the endpoint; 0: any (default: %(default)s)",
    )
    parser.add_argument(
        "--endpoint", type=_name, default="demo", metavar="NAME", help="default: %(default)s"
    )
    parser.add_argument(
        "--mar",
        type=Path,
        default=Path("build/chat.mar"),
        metavar="FILE",
        help="an archive, as `make mar` makes it (default: %(default)s)",
    )
    for flag, default, text in (
        ("--ts-config", "config.properties", "TorchServe's settings; addresses in it are replaced"),
        ("--log-config", "log4j2.xml", "TorchServe's logging"),
        ("--log-folder", "build/sagemaker-local", "where the instances' logs go"),
    ):
        parser.add_argument(
            flag,
            type=Path,
            default=Path(default),
            metavar="PATH",
            help=f"{text} (default: {default})",
        )
    parser.add_argument(
        "--start-timeout",
        type=positive,
        default=1200.0,
        metavar="SECONDS",
        help="how long loading may take (default: %(default)g)",
    )


def serve(options: argparse.Namespace) -> None:
    """Serves until it is interrupted.

    Raises:
        Unservable: a file or a library is missing, the port is taken, or TorchServe does not start.
    """
    for path in (options.mar, options.ts_config, options.log_config):
        if not path.exists():
            raise Unservable(f"no such file: {path}")
    try:
        from ts_stateful.sagemaker_local import endpoint  # noqa: PLC0415 - clients do without aiohttp
        from ts_stateful.torchserve.java import JavaMissing  # noqa: PLC0415 - as the next
        from ts_stateful.torchserve.server import ServerFailed  # noqa: PLC0415 - and without psutil
    except ImportError as missing:
        raise Unservable(
            f"{missing.name} is not installed: pip install 'torchserve-stateful[server,sagemaker]'"
        ) from None
    settings = endpoint.Settings(
        archive=options.mar,
        endpoint=options.endpoint,
        port=options.port,
        num_instances=options.instances,
        config=options.ts_config,
        log_config=options.log_config,
        log_folder=options.log_folder,
        start_timeout_s=options.start_timeout,
    )
    try:
        endpoint.run(settings, Terminal(sys.stdout).line)
    except (ServerFailed, JavaMissing) as error:
        raise Unservable(str(error)) from None


def _name(text: str) -> str:
    if not is_endpoint_name(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not letters and digits, with hyphens between them, 63 at most"
        )
    return text
