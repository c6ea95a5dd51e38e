"""The commands for operators."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ts_stateful.cli.session_table import SESSION_COLUMNS, aligned, ordered, session_row
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client.admin import AdminClient
from ts_stateful.client.errors import ClientError, ServerUnreachable
from ts_stateful.serving.admin_socket import newest_admin_socket
from ts_stateful.serving.local import ServerFailed

__all__ = ["administer_server"]


def administer_server(options: argparse.Namespace) -> bool:
    """Run a command; return False if a part of it failed.

    Raises:
        StatefulError, ClientError: the server refuses it, or there is none.
        ValueError: the URL of the server has a wrong form.
    """
    url = options.admin or _found()
    if not options.admin and options.command not in ("sessions", "top"):
        Terminal(sys.stderr).line(f"server {url}")
    with AdminClient(url, os.environ.get("TS_STATEFUL_ADMIN_TOKEN") or None) as client:
        return _COMMANDS[options.command](client, options, Terminal(sys.stdout))


def _found() -> str:
    try:
        socket = newest_admin_socket()
    except ServerFailed as error:
        raise ServerUnreachable(f"{error}, or name the server (--admin)") from None
    if socket is None:
        raise ServerUnreachable(
            "no server of this user runs on this machine; start one (`ts-stateful serve`), or name one:"
            " --admin unix:///path/admin.sock"
        )
    return f"unix://{socket}"


def _sessions(client: AdminClient, options: argparse.Namespace, terminal: Terminal) -> bool:
    path = ["sessions", options.session] if options.session else ["sessions"]
    document = client.get(*path, tenant=options.tenant)
    sessions = ordered(document["sessions"], options.sort)
    if options.json:
        terminal.line(json.dumps({**document, "sessions": sessions}))
    elif options.session:
        for session in sessions:
            for name, value in session.items():
                terminal.line(f"{name}: {value}")
    else:
        for line in aligned([SESSION_COLUMNS, *map(session_row, sessions)]):
            terminal.line(line)
    return _complete(document, "their sessions are not listed")


def _evict(client: AdminClient, options: argparse.Namespace, terminal: Terminal) -> bool:
    for session in client.post("sessions", options.session, "evict")["sessions"]:
        terminal.line(f"evicted {session['session_id']}; its tier is now {session['residency']}")
    return True


def _close(client: AdminClient, options: argparse.Namespace, terminal: Terminal) -> bool:
    if options.expire:
        if options.tenant:
            raise ValueError("--expire is for one session; name its ID instead of --tenant")
        client.post("sessions", options.session, "expire")
        terminal.line(f"{options.session} ends after the turns that it has")
        return True
    if options.tenant:
        answer = client.post("tenants", options.tenant, "close")
    else:
        answer = client.post("sessions", options.session, "close", model=options.model)
    terminal.line(f"closed {answer['closed']} session{'' if answer['closed'] == 1 else 's'}")
    for session_id, reason in answer["failed"].items():
        Terminal(sys.stderr).line(f"error: {session_id}: {reason}")
    return not answer["failed"]


def _drain(client: AdminClient, options: argparse.Namespace, terminal: Terminal) -> bool:
    status = client.post(options.command)
    engines = status["engines"]
    terminal.line(
        f"{status['status']}; open sessions: {sum(e['sessions_open'] for e in engines)},"
        f" requests in flight: {status['requests_in_flight']}"
    )
    return True


def _restart(client: AdminClient, options: argparse.Namespace, terminal: Terminal) -> bool:
    answer = client.post("engines", str(options.engine), "restart", model=options.model)
    terminal.line(f"engine {answer['engine']} (process {answer['pid']}) exits after its turns")
    return True


def _log_level(client: AdminClient, options: argparse.Namespace, terminal: Terminal) -> bool:
    answer = client.post("log-level", level=options.level)
    terminal.line(f"log level {answer['level']}")
    return _complete(answer, "their level is unchanged")


def _top(client: AdminClient, options: argparse.Namespace, terminal: Terminal) -> bool:
    try:
        from ts_stateful.cli.top import top  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ClientError(
            f"{error.name} is missing; install it: pip install 'torchserve-stateful[top]'"
        ) from None
    top(client, options)
    return True


def _complete(document: Mapping[str, Any], consequence: str) -> bool:
    """Return True if all engines have answered; else warn."""
    missing = document.get("missing", ())
    if missing:
        names = ", ".join(missing)
        Terminal(sys.stderr).line(f"error: engines that do not answer: {names}; {consequence}")
    return not missing


_COMMANDS: Mapping[str, Callable[[AdminClient, argparse.Namespace, Terminal], bool]] = {
    "sessions": _sessions,
    "evict": _evict,
    "close": _close,
    "drain": _drain,
    "undrain": _drain,
    "restart-engine": _restart,
    "log-level": _log_level,
    "top": _top,
}
