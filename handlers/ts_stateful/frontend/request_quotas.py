"""The quotas of a principal that a worker checks before an engine gets a request."""

from __future__ import annotations

from ts_stateful.config.limits import Quota, QuotasConfig
from ts_stateful.frontend.parsing.limits import HeldBytes
from ts_stateful.protocol.errors import InvalidRequest, QuotaExceeded

__all__ = ["RequestQuotas"]

_RETRY_AFTER_S = 1.0


class RequestQuotas:
    """The bounds of bytes in flight, which `held` counts, and of the choices of one request."""

    def __init__(self, settings: QuotasConfig, held: HeldBytes) -> None:
        self._settings = settings
        self._without_principal = settings.of(None)
        self._held = held

    def check(self, principal: str | None, num_bytes: int) -> None:
        """Check a request of so many bytes. A principal's only one may have more than the quota.

        Raises:
            QuotaExceeded: the principal would have too many bytes in flight.
        """
        most = self._of(principal).queued_bytes
        held = 0 if most is None else self._held.bytes_of(principal)
        if most is not None and held and held + num_bytes > most:
            raise QuotaExceeded(
                f"the requests of this principal in flight have {held} bytes, and with this one more than {most},"
                " its quota; wait for an answer first",
                field="handler.quotas.queuedBytes",
                retry_after_s=_RETRY_AFTER_S,
            )

    def check_choices(self, principal: str | None, count: int) -> None:
        """Check the choices of one request, each of which is a turn in flight.

        Raises:
            InvalidRequest: the principal may never have so many at a time.
        """
        most = self._of(principal).turns_in_flight
        if count > 1 and most is not None and count > most:
            raise InvalidRequest(
                f"{count} choices are more than this principal may have in flight, {most} (handler.quotas.turnsInFlight);"
                " ask for fewer at a time",
                field="n",
            )

    def _of(self, principal: str | None) -> Quota:
        return self._without_principal if principal is None else self._settings.of(principal)
