"""The command `ts-stateful doctor`: its options, its help, and one examination."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

from ts_stateful.cli.numbers import positive
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client.addresses import parse_address
from ts_stateful.client.management import Management
from ts_stateful.client.transports.rest import HttpTransport
from ts_stateful.client.transports.transport import TransportOptions
from ts_stateful.clock import SYSTEM_CLOCK
from ts_stateful.doctor.answers import facts_of
from ts_stateful.doctor.diagnosis import diagnose, in_words
from ts_stateful.doctor.evidence import ExaminedModel
from ts_stateful.doctor.repair import repaired
from ts_stateful.doctor.watch import Watch

__all__ = ["EPILOG", "add_options", "attend", "examine"]

EPILOG = """\
Examines TorchServe's description of the model, the worker and an engine. It also opens and closes a session, to examine the
store. /ping is not enough: it stays Healthy for minutes while requests hang. Run the doctor on TorchServe's machine, because
the management API listens only there. Of a server without TorchServe it examines readiness, models, limits and metrics instead
of workers. Such a server needs no repair: it starts its engines again by itself.

--repair uses that API. It scales the model to no worker and back to one, or unregisters it and registers it again. Engines
survive their worker, so sessions continue. Requests in flight break; clients of this package resume them. The doctor does not
repair a model that is healthy or starting.

  continuous   TorchServe replaces a dead worker itself. If requests still hang, register the model again, or restart TorchServe
  async        scaling repairs it
  sequence     after scaling, only new sessions work. For the open ones register the model again, or restart TorchServe

Registering needs enable_model_api=true in config.properties. It lets all clients of the management port run code, so it is off
by default. Turn it on only if the port is private. After a model was registered again, /invocations does not find it; use
/predictions/MODEL.

--watch examines again and again. With --repair it repairs an error that it finds twice in a row. If the model may only be busy,
it waits for six times. Run it beside TorchServe if the profile is not `continuous`.

examples:
  ts-stateful doctor
  ts-stateful doctor --model chat --url http://127.0.0.1:8080 --management-url http://127.0.0.1:8081
  ts-stateful doctor --repair
  ts-stateful doctor --repair --watch 10

exit status: 0 healthy (perhaps with warnings), 1 an error was found, 2 wrong usage.
"""


class _DatedTerminal(Terminal):
    """A terminal that writes the local time before each line."""

    def line(self, text: str = "") -> None:
        """Print a line after the time."""
        super().line(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; their defaults in the environment are read now."""
    add = parser.add_argument
    add("--repair", action="store_true", help="repair what the management API can repair")
    text = "examine again after this time, until interrupted, and print changes"
    add("--watch", type=positive, metavar="SECONDS", help=text)
    add("--json", action="store_true", help="print one JSON document")
    text = "name of the model, where --url has none (default: %(default)s)"
    add("--model", default="chat", help=text)
    here = "http://127.0.0.1"
    url = os.environ.get("TS_STATEFUL_URL") or f"{here}:8080"
    for flag, default, text in (
        ("--url", url, "address of the inference API"),
        ("--management-url", f"{here}:8081", "address of the management API"),
        ("--metrics-url", f"{here}:8082", "address of the metrics of a server without TorchServe"),
    ):
        add(flag, default=default, help=f"{text} (default: %(default)s)")
    text = "an answer that takes longer counts as missing (default: %(default)g)"
    add("--timeout", type=positive, default=5.0, metavar="SECONDS", help=text)
    for flag, variable, kind in (
        ("--token", "TS_STATEFUL_TOKEN", "inference"),
        ("--management-token", "TS_STATEFUL_MANAGEMENT_TOKEN", "management"),
    ):
        text = f"the {kind} key in TorchServe's key_file.json, if token authorization is on (default: ${variable})"
        add(flag, default=os.environ.get(variable) or None, help=text)
    text = "the session header of TorchServe's configuration (default: %(default)s)"
    add("--session-header", default="ts_request_sequence_id", metavar="NAME", help=text)
    add("--ca-file", type=Path, metavar="FILE", help="trusted certificates, as PEM")


def examine(options: argparse.Namespace) -> bool:
    """Print the findings and repair them if asked. Return True if the model is healthy; with `watch`, never return.

    Raises:
        ValueError: a URL is malformed.
    """
    if options.json and (options.repair or options.watch is not None):
        raise ValueError("--json examines once; leave out --repair and --watch")
    with _examined(options) as model:
        if options.json:
            evidence = model.examine()
            diagnosis = diagnose(evidence)
            found = {"model": model.name, "healthy": diagnosis.is_healthy}
            found |= {"findings": [asdict(finding) for finding in diagnosis.findings]}
            found |= facts_of(evidence)
            Terminal(sys.stdout).line(json.dumps(found, ensure_ascii=False))
            return diagnosis.is_healthy
        if options.watch is None:
            return attend(model, Terminal(sys.stdout), repair=options.repair)
        watch = Watch(model, _DatedTerminal(sys.stdout), repair=options.repair)
        while True:
            watch.look_again()
            SYSTEM_CLOCK.sleep(options.watch)


def attend(model: ExaminedModel, terminal: Terminal, *, repair: bool) -> bool:
    """Examine the model once, repair it if asked, and then examine it again. Return True if it is healthy."""
    evidence = model.examine()
    diagnosis = diagnose(evidence)
    for line in in_words(evidence, diagnosis):
        terminal.line(line)
    if diagnosis.is_healthy or not repair:
        return diagnosis.is_healthy
    return repaired(model.management, evidence, diagnosis.repair, terminal) and attend(
        model, terminal, repair=False
    )


@contextlib.contextmanager
def _examined(options: argparse.Namespace) -> Iterator[ExaminedModel]:
    address = parse_address(options.url)
    if address.is_grpc:
        raise ValueError(
            f"the doctor needs HTTP, not {options.url}; give --url http:// or https://"
        )
    # `ts-stateful serve` prints the URL of a model, and that of the metrics with their path.
    _, _, named = address.path.partition("/predictions/")
    name = unquote(named.partition("/")[0]) or options.model
    metrics = parse_address(options.metrics_url)
    path = metrics.path.removesuffix("/metrics")
    metrics_url = f"{metrics.scheme}://{metrics.authority}{path}/metrics"
    token = {} if options.token is None else {"Authorization": f"Bearer {options.token}"}
    settings = TransportOptions(name, token, options.session_header, ca_file=options.ca_file)
    transport = HttpTransport(address, settings)
    management = Management(
        options.management_url, token=options.management_token, ca_file=options.ca_file
    )
    with contextlib.closing(transport), contextlib.closing(management):
        yield ExaminedModel(name, management, transport, options.timeout, metrics_url)
