"""The command line of the local endpoint: `make sagemaker-local`, or `python -m deploy.sagemaker.local`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.sagemaker.local.endpoint import FRONTS, Settings, run
from ts_stateful.cli.numbers import positive, whole
from ts_stateful.cli.terminal import Terminal
from ts_stateful.config.schema import ConfigError
from ts_stateful.protocol.sagemaker import is_endpoint_name
from ts_stateful.serving.local import ServerFailed
from ts_stateful.torchserve.java import JavaMissing

__all__ = ["main"]

_MAX_INSTANCES = 16
_EPILOG = """\
Starts one or more servers with the same archive. In front of them, a router serves SageMaker's InvokeEndpoint and
InvokeEndpointWithResponseStream. Sessions stay on the instance that opened them. Errors and limits are those of the service.
docs/sagemaker.md lists what is the same and what is missing.

The command prints `ready` when the endpoint answers. Ctrl-C or SIGTERM stops the endpoint and its instances.
It needs a checkout with `make setup`.

examples:
  make sagemaker-local
  make sagemaker-local ARGS="--instances 3 --port 9001 --endpoint demo"
  python -m deploy.sagemaker.local --mar build/chat.mar --front asgi

then, in another terminal:
  the client of this package:
    ts-stateful chat --url 'sagemaker://demo?endpoint_url=http://127.0.0.1:9000' --image examples/shapes/scene.png
  boto3:
    boto3.client("sagemaker-runtime", endpoint_url="http://127.0.0.1:9000", region_name="us-east-1",
                 aws_access_key_id="any", aws_secret_access_key="any")
  the instances in service and their number of sessions:
    curl http://127.0.0.1:9000/ping

exit status: 0 stopped, 1 not started (the reason is on standard error), 2 wrong usage.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted, and return the exit status."""
    options = _parser().parse_args(arguments)
    settings = Settings(
        archive=options.mar,
        endpoint=options.endpoint,
        port=options.port,
        num_instances=options.instances,
        front=options.front,
        config=options.ts_config,
        log_config=options.log_config,
        log_folder=options.log_folder,
        start_timeout_s=options.start_timeout,
    )
    try:
        paths = [settings.archive]
        if settings.front == "torchserve":
            paths += [settings.config, settings.log_config]
        for path in paths:
            if not path.exists():
                raise ServerFailed(f"no such file: {path}")
        run(settings, Terminal(sys.stdout))
    except (ConfigError, ServerFailed, JavaMissing) as error:
        Terminal(sys.stderr).line(f"error: {error}")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.sagemaker.local",
        description="Serve an endpoint like SageMaker's on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    instances, port = whole(1, _MAX_INSTANCES), whole(0, 65535)
    add("--instances", type=instances, default=2, metavar="N", help="default: %(default)s")
    text = "port of the endpoint; 0 takes a free one (default: %(default)s)"
    add("--port", type=port, default=9000, help=text)
    text = (
        "the instances' server, as in build_and_push.sh; asgi needs no Java (default: %(default)s)"
    )
    add("--front", choices=FRONTS, default=FRONTS[0], help=text)
    add("--endpoint", type=_name, default="demo", metavar="NAME", help="default: %(default)s")
    for flag, default, text in (
        ("--mar", "build/chat.mar", "the archive to serve; `make mar` packs one"),
        ("--ts-config", "config.properties", "TorchServe's settings; their addresses are replaced"),
        ("--log-config", "log4j2.xml", "TorchServe's logging"),
        ("--log-folder", "build/sagemaker-local", "folder for the logs of the instances"),
    ):
        add(
            flag,
            type=Path,
            default=Path(default),
            metavar="PATH",
            help=f"{text} (default: {default})",
        )
    text = "longest time for an instance to load (default: %(default)g)"
    add("--start-timeout", type=positive, default=1200.0, metavar="SECONDS", help=text)
    return parser


def _name(text: str) -> str:
    if not is_endpoint_name(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an endpoint name: use letters, digits and hyphens between them, 63 at most"
        )
    return text


if __name__ == "__main__":
    sys.exit(main())
