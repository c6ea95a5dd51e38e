"""Sessions and engines as rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ts_stateful.config.sizes.quantities import show_bytes

__all__ = [
    "ENGINE_COLUMNS",
    "SESSION_COLUMNS",
    "aligned",
    "engine_row",
    "ordered",
    "session_row",
    "show_time",
]

SESSION_COLUMNS = (
    *("SESSION", "MODEL", "TENANT", "AGE", "IDLE", "TURNS", "TOKENS"),
    *("DEVICE", "HOST", "TIER", "STATE"),
)
ENGINE_COLUMNS = (
    *("ENGINE", "PID", "ON", "STATE", "SESSIONS", "TURNS", "DEVICE", "HOST", "TOKENS"),
    *("EVICTED", "STORE FAILURES"),
)


def ordered(sessions: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Sort sessions: the largest, the oldest or the longest idle first, or by their tenants."""
    if key == "tenant":
        return sorted(sessions, key=lambda one: (one["tenant"] or "", one["session_id"]))
    if key == "bytes":
        return sorted(sessions, key=lambda one: -(one["device_bytes"] + one["host_bytes"]))
    return sorted(sessions, key=lambda one: -one[f"{key}_s"])


def session_row(session: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a session, in the order of `SESSION_COLUMNS`."""
    waiting = f" +{session['waiting']}" if session["waiting"] else ""
    return (
        session["session_id"],
        session["model"],
        session["tenant"] or "-",
        show_time(session["age_s"]),
        show_time(session["idle_s"]),
        str(session["turns"]),
        str(session["tokens"]),
        show_bytes(session["device_bytes"]),
        show_bytes(session["host_bytes"]),
        session["residency"],
        f"running{waiting}" if session["running"] else "idle",
    )


def engine_row(engine: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of an engine, in the order of `ENGINE_COLUMNS`."""
    return (
        f"{engine['model']}/{engine['engine']}",
        str(engine["pid"] or "-"),
        engine["device"],
        "up" if engine["up"] else "down",
        str(engine["sessions_open"]),
        str(engine["turns_in_progress"]),
        _of(engine["device_bytes"], engine["device_budget_bytes"]),
        _of(engine["host_bytes"], engine["host_budget_bytes"]),
        str(engine["tokens_generated"]),
        str(engine["evictions"]),
        str(engine["store_failures"]),
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines with their columns below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _of(num_bytes: int, budget: int) -> str:
    return show_bytes(num_bytes) + (f" of {show_bytes(budget)}" if budget else "")


def show_time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes}m{rest:02}s"
    return f"{minutes // 60}h{minutes % 60:02}m"
