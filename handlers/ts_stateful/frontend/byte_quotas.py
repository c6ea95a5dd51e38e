"""The quota of a principal's bytes in flight in one worker."""

from __future__ import annotations

from ts_stateful.config.quotas import QuotasConfig
from ts_stateful.frontend.parsing.limits import HeldBytes
from ts_stateful.protocol.errors import QuotaExceeded

__all__ = ["ByteQuotas"]

_RETRY_AFTER_S = 1.0


class ByteQuotas:
    """The bounds of `handler.quotas.queuedBytes`; `held` counts."""

    def __init__(self, settings: QuotasConfig, held: HeldBytes) -> None:
        self._settings = settings
        self._without_principal = settings.of(None)
        self._held = held

    def check(self, principal: str | None, num_bytes: int) -> None:
        """Check a request of so many bytes. A principal's only one may have more than the quota.

        Raises:
            QuotaExceeded: the principal would have too many bytes in flight.
        """
        quota = self._without_principal if principal is None else self._settings.of(principal)
        most = quota.queued_bytes
        held = 0 if most is None else self._held.bytes_of(principal)
        if most is not None and held and held + num_bytes > most:
            raise QuotaExceeded(
                f"the requests of this principal in flight have {held} bytes, and with this one more than {most},"
                " its quota; wait for an answer first",
                field="handler.quotas.queuedBytes",
                retry_after_s=_RETRY_AFTER_S,
            )
