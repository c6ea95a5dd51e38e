"""The options and the help of the commands for operators."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from ts_stateful.cli.numbers import positive, whole

__all__ = ["COMMANDS", "SORT_KEYS", "add_commands"]

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
COMMANDS = ("sessions", "evict", "close", "drain", "undrain", "restart-engine", "log-level", "top")
"""The names of the commands."""


def add_commands(add: _Add) -> None:
    """Add the commands by `add(name, text, epilog, *parents)`."""
    admin, view = _admin_options(), _view_options()
    sessions = add("sessions", "list the sessions of a server", _SESSIONS, admin, view)
    sessions.add_argument("session", nargs="?", metavar="ID", help="show this session alone")
    sessions.add_argument("--json", action="store_true", help="print one JSON document")
    text = "remove a session's KV states from memory, and keep the session"
    add("evict", text, _EVICT, admin).add_argument("session", metavar="ID", help="of the session")
    close = add("close", "end a session, or all of a tenant", _CLOSE, admin)
    which = close.add_mutually_exclusive_group(required=True)
    which.add_argument("session", nargs="?", metavar="ID", help="of the session")
    which.add_argument("--tenant", help="end all sessions of this tenant")
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
    parser.add_argument("--tenant", help=text)
    return parser
