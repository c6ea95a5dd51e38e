"""`ts-stateful doctor`: whether a model serves, why not, and putting right what TorchServe's management API can.

Owns its options and help. What is wrong is `diagnosis`'s to say, and `repair` puts it right.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from ts_stateful.cli.diagnosis import diagnose, in_words
from ts_stateful.cli.evidence import Evidence, gather
from ts_stateful.cli.numbers import positive
from ts_stateful.cli.repair import repaired
from ts_stateful.cli.terminal import Terminal
from ts_stateful.cli.watch import Watch
from ts_stateful.client.addresses import parse_address
from ts_stateful.client.management import Management
from ts_stateful.client.transports.rest import HttpTransport
from ts_stateful.client.transports.transport import Transport, TransportOptions

__all__ = ["EPILOG", "add_options", "attend", "examine"]

EPILOG = """\
Asks TorchServe about the model, the worker, an engine and, by a session that it opens and closes, the store. /ping does not
tell: it is Healthy for minutes while requests hang. Run it where TorchServe runs, since the management API listens there alone.

With --repair it does what that API can: it scales the model to no worker and back to one, or unregisters it and registers it
again. Engines outlive their worker, and sessions are in the store: they go on. Requests in flight break; this package's clients
take them up again. It does nothing to a model that is healthy, or is being started.

  continuous   TorchServe starts a worker that died again by itself. What hangs here needs registering, or a restart
  async        scaling puts it right
  sequence     scaling serves new sessions alone: those that were open hang until the model is registered anew, or TorchServe
               restarted

Registering needs enable_model_api=true in config.properties. It lets everybody who reaches the management port run code, so it
is off; turn it on where only you do, or restart TorchServe instead. A model that was registered anew is unknown to
/invocations; /predictions/MODEL reaches it.

With --watch it goes on looking, and --repair puts right what it sees twice in a row, or six times, where it may pass: a model
that gives no answer may have much to do. Have it run beside TorchServe where a profile other than `continuous` is served.

examples:
  ts-stateful doctor
  ts-stateful doctor --model chat --url http://127.0.0.1:8080 --management-url http://127.0.0.1:8081
  ts-stateful doctor --repair
  ts-stateful doctor --repair --watch 10

exit status: 0 healthy (perhaps with warnings), 1 something is wrong, 2 wrong usage.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them; the environment's defaults are read now."""
    parser.add_argument("--repair", action="store_true", help="put right what can be")
    parser.add_argument(
        "--watch",
        type=positive,
        metavar="SECONDS",
        help="look again so long after every look, until it is interrupted, and say what has changed",
    )
    parser.add_argument("--model", default="chat", help="name of the model (default: %(default)s)")
    for flag, port, text in (
        ("--url", 8080, "where TorchServe takes requests"),
        ("--management-url", 8081, "where its management API is"),
    ):
        default = f"http://127.0.0.1:{port}"
        parser.add_argument(flag, default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        type=positive,
        default=5.0,
        metavar="SECONDS",
        help="what takes longer than this hangs (default: %(default)g)",
    )
    for flag, variable, kind in (
        ("--token", "TS_STATEFUL_TOKEN", "inference"),
        ("--management-token", "TS_STATEFUL_MANAGEMENT_TOKEN", "management"),
    ):
        parser.add_argument(
            flag,
            default=os.environ.get(variable) or None,
            help=f"the {kind} key of TorchServe's token authorization, in its key_file.json (default: ${variable})",
        )
    parser.add_argument(
        "--session-header",
        default="ts_request_sequence_id",
        metavar="NAME",
        help="the session header, if TorchServe is configured with another (default: %(default)s)",
    )
    parser.add_argument("--ca-file", type=Path, metavar="FILE", help="certificates to trust")


def examine(options: argparse.Namespace) -> bool:
    """Prints what is wrong, and what is left of it where a repair is asked for; returns whether the model is healthy.

    Does not return where `watch` says how many seconds lie between two looks.

    Raises:
        ValueError: a URL cannot be meant.
    """
    terminal = Terminal(sys.stdout)
    with _connections(options) as (management, transport):
        look = partial(gather, options.model, management, transport, options.timeout)
        if options.watch is None:
            return attend(look, management, repair=options.repair, say=terminal.line)

        def say(line: str) -> None:
            terminal.line(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}")

        watch = Watch(look, management, repair=options.repair, say=say)
        while True:
            watch.look_again()
            time.sleep(options.watch)


def attend(
    look: Callable[[], Evidence],
    management: Management,
    *,
    repair: bool,
    say: Callable[[str], None],
) -> bool:
    """As `examine`, of what `look` sees."""
    evidence = look()
    diagnosis = diagnose(evidence)
    for line in in_words(evidence, diagnosis):
        say(line)
    if diagnosis.is_healthy or not repair:
        return diagnosis.is_healthy
    return repaired(management, evidence, diagnosis.repair, say) and attend(
        look, management, repair=False, say=say
    )


@contextlib.contextmanager
def _connections(options: argparse.Namespace) -> Iterator[tuple[Management, Transport]]:
    address = parse_address(options.url)
    if address.is_grpc:
        raise ValueError(f"the doctor asks over HTTP: --url cannot be {options.url}")
    token = {} if options.token is None else {"Authorization": f"Bearer {options.token}"}
    settings = TransportOptions(
        options.model, token, options.session_header, ca_file=options.ca_file
    )
    transport = HttpTransport(address, settings)
    management = Management(
        options.management_url, token=options.management_token, ca_file=options.ca_file
    )
    with contextlib.closing(transport), contextlib.closing(management):
        yield management, transport
