"""TorchServe's own keys: places for requests, times, and what a session may do.

Owns their choice for each profile.
"""

from __future__ import annotations

import math

from ts_stateful.config.sizes import show_bytes, show_count
from ts_stateful.plan.asked import Asked, refuse
from ts_stateful.plan.setting import Setting
from ts_stateful.protocol.profile import Profile

__all__ = ["PROFILE_KEYS", "load_reason", "load_timeout_s", "traffic"]

PROFILE_KEYS = {
    Profile.CONTINUOUS: "continuousBatching",
    Profile.SEQUENCE: "sequenceBatching",
    Profile.ASYNC: "asyncCommunication",
}
_MAX_THREADS = 10_000
_MAX_IDLE_MIN = 35_000  # TorchServe takes at most 2**31 - 1 milliseconds
_LEAST_BATCH, _LEAST_QUEUE = 64, 100
_LEAST_LIFETIME_MS = 3_600_000
_LEAST_LOAD_S = 600
_LOAD_BYTES_PER_S = 200_000_000  # a disk, which the engines share


def traffic(asked: Asked) -> list[Setting]:
    """Everything above `handler:`.

    Raises:
        PlanRefused: the profile cannot hold so many.
    """
    return [
        Setting(
            "minWorkers",
            1,
            "One worker in front of all engines: more would split a session's requests.",
        ),
        Setting("maxWorkers", 1, "As above; devices are added by handler.engines."),
        Setting(PROFILE_KEYS[asked.profile], True, f"The {asked.profile.value} profile."),
        *_places(asked),
        Setting(
            "maxBatchDelay",
            1,
            "Milliseconds; TorchServe waits this out before a first batch, whatever has arrived.",
        ),
        Setting(
            "maxSequenceJobQueueSize",
            asked.waiting,
            "Requests that may wait in one session behind the one in progress; the next is answered with 429.",
        ),
        *_times(asked),
    ]


def _times(asked: Asked) -> list[Setting]:
    if not 1 <= asked.idle_min <= _MAX_IDLE_MIN:
        raise refuse(
            f"sessions that may be idle for {asked.idle_min:g} minutes",
            f"ask for --idle 1 to --idle {_MAX_IDLE_MIN}",
        )
    idle_ms, load_s = round(asked.idle_min * 60_000), load_timeout_s(asked)
    return [
        Setting(
            "responseTimeout",
            120,
            "Seconds after which TorchServe kills a silent worker, which answers within milliseconds.",
        ),
        Setting(
            "startupTimeout",
            2 * load_s,
            f"Seconds that a worker may take to start: twice loadTimeoutSec ({load_s}).",
        ),
        Setting(
            "sequenceMaxIdleMSec",
            idle_ms,
            f"--idle {asked.idle_min:g} minutes: a session unused for so long ends.",
        ),
        Setting(
            "sequenceTimeoutMSec",
            max(_LEAST_LIFETIME_MS, idle_ms),
            "Any session ends after this: an hour, or the idle time where that is longer.",
        ),
    ]


def load_timeout_s(asked: Asked) -> int:
    """Seconds for the slowest engine to load the model, in whole minutes."""
    read_s = asked.engines * asked.weights / _LOAD_BYTES_PER_S
    return max(_LEAST_LOAD_S, 60 * math.ceil(read_s / 60 + 2))


def load_reason(asked: Asked) -> str:
    """How that comes about."""
    if not asked.weights:
        return "Seconds that an engine may take to load the model."
    return (
        f"Seconds to load the model: {asked.engines} x {show_bytes(asked.weights)} at"
        f" {_LOAD_BYTES_PER_S // 1_000_000} MB/s and two minutes, at least ten."
    )


def _places(asked: Asked) -> list[Setting]:
    if asked.profile is Profile.SEQUENCE:
        return _places_of_sequences(asked)
    sessions, turns = asked.sessions, asked.turns
    if asked.profile is Profile.ASYNC:
        batch = Setting(
            "batchSize",
            1,
            "More would hang in this profile; it does not limit the turns side by side.",
        )
    else:
        batch = Setting(
            "batchSize",
            max(_LEAST_BATCH, turns + -(-turns // 4)),
            f"Requests in flight: {show_count(turns)} turns in progress (--active) and a quarter more for open, info and"
            f" cancel, at least {_LEAST_BATCH}. Open sessions that are idle take no place here.",
        )
    queued = max(_LEAST_QUEUE, 2 * sessions)
    return [
        batch,
        Setting(
            "jobQueueSize",
            queued,
            f"Requests that wait for a place, 503 beyond: 2 x {show_count(sessions)} sessions, so that all of them can ask at"
            f" the same time, and cancel; at least {_LEAST_QUEUE}.",
        ),
        Setting(
            "maxNumSequence",
            sessions,
            "Open sessions (--sessions); the next open is answered with 429.",
        ),
    ]


def _places_of_sequences(asked: Asked) -> list[Setting]:
    ended = math.ceil(asked.opened_per_min * asked.idle_min)
    places = asked.sessions + ended
    if places > _MAX_THREADS:
        idle_min = (_MAX_THREADS - asked.sessions) / asked.opened_per_min if ended else 0
        raise refuse(
            f"{show_count(places)} places in the sequence profile ({show_count(asked.sessions)} open and {show_count(ended)}"
            f" ended within {asked.idle_min:g} minutes), for each of which TorchServe keeps a thread: more than"
            f" {show_count(_MAX_THREADS)} are not sensible",
            "ask for --profile continuous, where idle sessions cost TorchServe nothing"
            + (f", or for --idle {math.floor(idle_min)}" if idle_min >= 1 else ""),
        )
    told = (
        f"{show_count(asked.sessions)} open (--sessions), and {show_count(ended)} ended ones, which hold their places until"
        f" they have been idle (--opens {asked.opened_per_min:g} a minute x --idle {asked.idle_min:g})"
    )
    return [
        Setting(
            "batchSize",
            places + 1,
            f"Every session holds a place in the batch until it has been idle, closed or not: {told}. With one place more,"
            " TorchServe always has a thread for what waits.",
        ),
        Setting(
            "maxNumSequence",
            places,
            "One less than batchSize: a session more than there are places would wait for ever.",
        ),
        Setting(
            "jobQueueSize", _LEAST_QUEUE, "In this profile no request of a session waits here."
        ),
    ]
