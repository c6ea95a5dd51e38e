"""Throughput of streams that ran side by side, in two meanings."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from benchmarks.clients.conversation import Turn

__all__ = ["steady_rate", "whole_rate"]


def steady_rate(turns: Sequence[Turn]) -> float:
    """Return tokens a second while all streams run: from the last one's beginning to the first one's end."""
    begin = max(turn.arrivals[0].at for turn in turns)
    end = min(turn.arrivals[-1].at for turn in turns)
    num_tokens = sum(_tokens_until(turn, end) - _tokens_until(turn, begin) for turn in turns)
    if end <= begin:
        raise RuntimeError("the streams did not run at the same time")
    return num_tokens / (end - begin)


def whole_rate(turns: Sequence[Turn]) -> float:
    """Return tokens a second from sending the requests to the end of the last reply."""
    taken_s = max(turn.arrivals[-1].at for turn in turns) - min(turn.sent_at for turn in turns)
    return sum(turn.num_tokens for turn in turns) / taken_s


def _tokens_until(turn: Turn, at: float) -> int:
    index = bisect_right(turn.arrivals, at, key=lambda arrival: arrival.at)
    return turn.arrivals[index - 1].num_tokens if index else 0
