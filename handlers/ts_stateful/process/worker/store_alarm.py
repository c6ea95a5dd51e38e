"""A warning in the log of the server when its engines, whose logs are files, cannot write to their store."""

from __future__ import annotations

import logging

from ts_stateful.protocol.stats import Stats

__all__ = ["StoreAlarm"]

logger = logging.getLogger(__name__)


class StoreAlarm:
    """A `StatsPublisher` that logs a line when writes begin to fail, not one for each failure."""

    _num_failed, _is_failing = 0, False

    def publish(self, stats: Stats) -> None:
        """See `StatsPublisher`. The count falls where an engine dies."""
        is_failing = stats.store_failures > self._num_failed
        if is_failing and not self._is_failing:
            logger.error("writes to the store failed; the logs of the engines have the reason")
        self._num_failed, self._is_failing = stats.store_failures, is_failing
