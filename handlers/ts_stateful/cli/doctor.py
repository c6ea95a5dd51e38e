"""`ts-stateful doctor`: whether a model serves, why not, and putting right what TorchServe's management API can.

Owns its options and help, the order of a repair, and what is printed. What is wrong is `diagnosis`'s to say.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ts_stateful.answers import HelloAnswer
from ts_stateful.cli.diagnosis import RESTART, Diagnosis, Repair, diagnose
from ts_stateful.cli.evidence import Evidence, gather
from ts_stateful.cli.numbers import positive
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client.addresses import http_transport, parse_address
from ts_stateful.client.documents import MAX_BODY_BYTES
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ServerRefused,
    ServerUnreachable,
)
from ts_stateful.client.management import Description, Management
from ts_stateful.client.transport import Transport

__all__ = ["EPILOG", "add_options", "attend", "examine"]

_STARTS_S = 10.0  # for a worker to start, beside what its model may take
_METHOD_NOT_ALLOWED = 405

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
is off; turn it on where only you do, or restart TorchServe instead.

examples:
  ts-stateful doctor
  ts-stateful doctor --model chat --url http://127.0.0.1:8080 --management-url http://127.0.0.1:8081
  ts-stateful doctor --repair

exit status: 0 healthy (perhaps with warnings), 1 something is wrong, 2 wrong usage.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them; the environment's defaults are read now."""
    parser.add_argument("--repair", action="store_true", help="put right what can be")
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

    Raises:
        ValueError: a URL cannot be meant.
    """
    with _connections(options) as (management, transport):
        look = partial(gather, options.model, management, transport, options.timeout)
        return attend(look, management, repair=options.repair, say=Terminal(sys.stdout).line)


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
    _print(evidence, diagnosis, say)
    if diagnosis.is_healthy or not repair:
        return diagnosis.is_healthy
    return _repaired(management, evidence, diagnosis.repair, say) and attend(
        look, management, repair=False, say=say
    )


@contextlib.contextmanager
def _connections(options: argparse.Namespace) -> Iterator[tuple[Management, Transport]]:
    address = parse_address(options.url)
    if address.is_grpc:
        raise ValueError(f"the doctor asks over HTTP: --url cannot be {options.url}")
    token = {} if options.token is None else {"Authorization": f"Bearer {options.token}"}
    transport = http_transport(
        address,
        options.model,
        token,
        max_body_bytes=MAX_BODY_BYTES,
        ca_file=options.ca_file,
        header=options.session_header,
    )
    management = Management(
        options.management_url, token=options.management_token, ca_file=options.ca_file
    )
    with contextlib.closing(transport), contextlib.closing(management):
        yield management, transport


def _repaired(
    management: Management, evidence: Evidence, repair: Repair, say: Callable[[str], None]
) -> bool:
    """Does the repair; returns whether TorchServe has done what it was asked."""
    description, began = evidence.description, time.monotonic()
    if repair is Repair.NONE or not isinstance(description, Description):
        say("not repaired: this is nothing that TorchServe's management API could put right")
        return False
    try:
        if repair is not Repair.REGISTER or not _registered_anew(management, description, say):
            if evidence.new_ids:  # those that are served now would be lost as well
                say("not repaired: to scale the model would not help")
                return False
            _scale(management, description, say)
    except ClientError as error:
        say(f"error: management API: {error.message}")
        say(f"  cure: see TorchServe's log, or {RESTART}")
        return False
    say(f"repair: done, in {time.monotonic() - began:.1f} s")
    return True


def _registered_anew(
    management: Management, description: Description, say: Callable[[str], None]
) -> bool:
    model, url = description.model_name, description.model_url
    try:
        management.unregister(model)
    except ServerRefused as error:
        if error.status != _METHOD_NOT_ALLOWED:
            raise
        say("repair: TorchServe registers no models while it runs (enable_model_api is not set)")
        return False
    except (DeadlineExceeded, ServerUnreachable):
        pass  # it may be doing it all the same, and then nobody would have the model
    say(f"repair: {model} is unregistered, and registered again from {url}")
    management.register(model, url, description.startup_timeout + _STARTS_S)
    return True


def _scale(management: Management, description: Description, say: Callable[[str], None]) -> None:
    say(f"repair: {description.model_name} is scaled to no worker, and back to one")
    try:
        with contextlib.suppress(DeadlineExceeded):  # it goes on with that
            management.scale(description.model_name, 0, _STARTS_S)
    finally:  # whoever waits no longer must not leave a model without a worker
        management.scale(description.model_name, 1, description.startup_timeout + _STARTS_S)


def _print(evidence: Evidence, diagnosis: Diagnosis, say: Callable[[str], None]) -> None:
    for finding in diagnosis.findings:
        say(f"{finding.severity}: {finding.key}: {finding.message}")
        say(f"  cure: {finding.cure}")
    hello = evidence.hello
    if diagnosis.is_healthy and isinstance(hello, HelloAnswer):
        say(f"ok: {evidence.model} answers: {hello.profile} profile, version {hello.version}")
