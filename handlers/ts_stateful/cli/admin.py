"""The commands for operators: their options, their help, and their runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ts_stateful.cli.numbers import filled, positive, whole
from ts_stateful.cli.session_table import SESSION_COLUMNS, aligned, ordered, session_row
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client.admin import AdminClient
from ts_stateful.client.errors import ClientError, ServerUnreachable
from ts_stateful.serving.admin_socket import newest_admin_socket
from ts_stateful.serving.local import ServerFailed

__all__ = ["COMMANDS", "add_commands", "administer_server"]

SORT_KEYS = ("bytes", "age", "idle", "tenant")

_SOCKET = """\
The server is that of --admin or $TS_STATEFUL_ADMIN, else the last one that this user has started on this machine. A port
(`serve --admin-port`) needs the token in $TS_STATEFUL_ADMIN_TOKEN. The front torchserve has no administration.
"""
_IDS = """\
Ids are those that engines use. A session of a principal is `<tenant>.<session>`, both digits of hashes (docs/security.md).
"""
_SESSIONS = f"""\
Lists the sessions in the engines, or shows one of them. Content is never shown. DEVICE and HOST are bytes of tensors; TIER is
the place from which the next turn has them. Sessions that only the store has are not listed.
{_IDS}
{_SOCKET}
examples:
  ts-stateful sessions
  ts-stateful sessions --sort idle --tenant alice
  ts-stateful sessions 0123456789abcdef0123456789abcdef --json
"""
_EVICT = f"""\
Removes the KV states of an idle session from the memory of device and host. The session stays open, and its next turn reads
them from the store or computes them again. Embeddings of its images stay. States of recurrent models move to host memory.

{_SOCKET}
examples:
  ts-stateful evict 0123456789abcdef0123456789abcdef
"""
_CLOSE = f"""\
Ends a session as its client would: its turn ends as it stands, waiting prompts fail, and the store forgets it. With --expire
the turns that it has are finished first, and it ends as if its time were up. With --tenant all sessions end that the engines
have, or have parked, of a principal by its name or its digits, or of a tenant in `metadata`. Sessions of other servers stay.

{_SOCKET}
examples:
  ts-stateful close 0123456789abcdef0123456789abcdef
  ts-stateful close 0123456789abcdef0123456789abcdef --expire
  ts-stateful close --tenant alice
"""
_DRAIN = f"""\
From now on the server opens no sessions (503), and /readyz is 503, so that load balancers choose others. Open sessions go on.
`ts-stateful undrain` takes sessions again, and so does a front that starts again after a crash.

{_SOCKET}
examples:
  ts-stateful drain
"""
_UNDRAIN = f"""\
Undoes `ts-stateful drain`.

{_SOCKET}
examples:
  ts-stateful undrain
"""
_RESTART = f"""\
The engine takes no new requests, finishes its turns within `drainSec`, and exits. Another one takes its place. Its sessions
come back from the store; without a store they end. `ts-stateful top` shows the numbers of engines.

{_SOCKET}
examples:
  ts-stateful restart-engine 0
  ts-stateful restart-engine 1 --model chat
"""
_LOG_LEVEL = f"""\
Changes the least level of the log lines of the front and the engines, until each of these processes ends.

{_SOCKET}
examples:
  ts-stateful log-level DEBUG
"""
_TOP = f"""\
Shows engines and sessions until Ctrl-C. In a pipe or a file it prints them once.
Needs an extra: pip install 'torchserve-stateful[top]'

{_SOCKET}
examples:
  ts-stateful top
  ts-stateful top --sort idle --interval 5
"""

_Add = Callable[..., argparse.ArgumentParser]


def add_commands(add: _Add) -> None:
    """Add the commands by `add(name, text, epilog, *parents)`."""
    admin, view = _admin_options(), _view_options()
    sessions = add("sessions", "list the sessions of a server", _SESSIONS, admin, view)
    text = "show this session alone"
    sessions.add_argument("session", nargs="?", type=filled, metavar="ID", help=text)
    sessions.add_argument("--json", action="store_true", help="print one JSON document")
    text = "remove a session's KV states from memory, and keep the session"
    evict = add("evict", text, _EVICT, admin)
    evict.add_argument("session", type=filled, metavar="ID", help="of the session")
    close = add("close", "end a session, or all of a tenant", _CLOSE, admin)
    which = close.add_mutually_exclusive_group(required=True)
    which.add_argument("session", nargs="?", type=filled, metavar="ID", help="of the session")
    which.add_argument("--tenant", type=filled, help="end all sessions of this tenant")
    close.add_argument("--expire", action="store_true", help="of one session: finish its turns")
    close.add_argument("--model", help="the model, of a session that only the store has")
    add("drain", "take no new sessions, and be not ready", _DRAIN, admin)
    add("undrain", "take sessions again", _UNDRAIN, admin)
    restart = add("restart-engine", "replace an engine after its turns", _RESTART, admin)
    restart.add_argument("engine", type=whole(0), metavar="N", help="number of the engine")
    restart.add_argument("--model", help="its model, if the server has several")
    level = add("log-level", "change the level of the logs", _LOG_LEVEL, admin)
    level.add_argument("level", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    top = add("top", "watch engines and sessions in the terminal", _TOP, admin, view)
    text = "between two looks (default: %(default)g)"
    top.add_argument("--interval", type=positive, default=2.0, metavar="SECONDS", help=text)


def _admin_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    url = os.environ.get("TS_STATEFUL_ADMIN") or None
    text = "unix:///path or http://host:port (default: $TS_STATEFUL_ADMIN, or this user's newest server)"
    parser.add_argument("--admin", metavar="URL", default=url, help=text)
    return parser


def _view_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    text = "largest or oldest first (default: %(default)s)"
    parser.add_argument("--sort", choices=SORT_KEYS, default="bytes", help=text)
    text = "only of this tenant: a principal's name or digits, or that of `metadata`"
    parser.add_argument("--tenant", type=filled, help=text)
    return parser


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
        return COMMANDS[options.command](client, options, Terminal(sys.stdout))


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


COMMANDS: Mapping[str, Callable[[AdminClient, argparse.Namespace, Terminal], bool]] = {
    "sessions": _sessions,
    "evict": _evict,
    "close": _close,
    "drain": _drain,
    "undrain": _drain,
    "restart-engine": _restart,
    "log-level": _log_level,
    "top": _top,
}
"""The runs of the commands by their names."""
