"""The live view of `ts-stateful top`. Needs the extra `top`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ts_stateful.cli.session_table import (
    ENGINE_COLUMNS,
    SESSION_COLUMNS,
    engine_row,
    ordered,
    session_row,
)
from ts_stateful.client.admin import AdminClient
from ts_stateful.client.errors import ServerUnreachable
from ts_stateful.clock import SYSTEM_CLOCK, Clock

__all__ = ["screen", "top"]

_LINES_BESIDE = 8  # of a screen: titles, headings, and what follows the sessions
# Columns that a narrow screen lacks, so that ids are whole; and a very narrow one, so that the others are.
_LEAST = ("STORE FAILURES", "EVICTED", "MODEL", "HOST", "TENANT")
_LESS = ("TOKENS", "TURNS", "AGE", "ON", "PID", "IDLE", "DEVICE")
_ID_CHARS = 32  # of an id, for which other columns have to go
_MIN_ID_CHARS = 8
_FILE_WIDTH = 500  # nothing is cut


def top(
    client: AdminClient,
    options: argparse.Namespace,
    console: Console | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Show engines and sessions until KeyboardInterrupt; print them once where nothing can be drawn again.

    Raises:
        StatefulError, ClientError: the server refuses, or there was none at the beginning.
    """
    console = console or Console()
    if not console.is_terminal or console.is_dumb_terminal:
        console.width = _FILE_WIDTH
        console.print(_view(client, options, console))
        return
    view = _view(client, options, console)
    with Live(view, console=console, screen=True, auto_refresh=False) as live:
        while True:
            clock.sleep(options.interval)
            try:
                view = _view(client, options, console)
            except ServerUnreachable as error:  # a front that starts again is back within seconds
                view = Group(Text(error.message, style="red"))
            live.update(view, refresh=True)


def screen(
    status: dict[str, Any],
    sessions: Sequence[dict[str, Any]],
    width: int,
    max_rows: int | None = None,
) -> Group:
    """Return one view of the `status` and of the first `max_rows` sessions, for `width` characters."""
    style = "green" if status["status"] == "ready" else "yellow"
    title = Text.assemble(
        (status["status"], style),
        f"  process {status['pid']}  version {status['version']}"
        f"  {len(sessions)} sessions  {status['requests_in_flight']} requests in flight",
    )
    shown = sessions[:max_rows]
    rest = len(sessions) - len(shown)
    return Group(
        title,
        _table([ENGINE_COLUMNS, *map(engine_row, status["engines"])], width),
        _table([SESSION_COLUMNS, *map(session_row, shown)], width),
        Text(f"{rest} more" if rest else ""),
    )


def _view(client: AdminClient, options: argparse.Namespace, console: Console) -> Group:
    status = client.get("status")
    sessions = ordered(client.get("sessions", tenant=options.tenant)["sessions"], options.sort)
    beside = _LINES_BESIDE + len(status["engines"])
    max_rows = max(1, console.height - beside) if console.is_terminal else None
    return screen(status, sessions, console.width, max_rows)


def _table(rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table of rows, the first of which has the headings."""
    columns = list(zip(*rows, strict=True))
    for name in (*_LEAST, *_LESS):
        id_chars = _ID_CHARS if name in _LEAST else _MIN_ID_CHARS
        if sum(map(_width, columns[1:])) + id_chars > width:
            columns = [column for column in columns if column[0] != name]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    room = max(_MIN_ID_CHARS, width - sum(map(_width, columns[1:])) - 3)
    for number, column in enumerate(columns):
        table.add_column(column[0], no_wrap=True, max_width=room if number == 0 else None)
    for row in zip(*(cells for _, *cells in columns), strict=True):
        table.add_row(*map(Text, row))  # text, so that nothing in it is markup
    return table


def _width(column: Sequence[str]) -> int:
    return max(map(len, column)) + 3  # with the space before it
