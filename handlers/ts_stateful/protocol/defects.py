"""Unexpected exceptions: a log entry for the operator, an id for the client.

The text of an exception reaches neither the client nor the log, since it may quote a prompt.
"""

from __future__ import annotations

import logging
import traceback
import uuid

from ts_stateful.protocol.errors import InternalError

__all__ = ["defect"]

logger = logging.getLogger(__name__)


def defect(error: BaseException, where: str) -> InternalError:
    """Log the type and the trace of an exception under an id, and return an error with this id.

    `where` names the operation, in words that may be logged.
    """
    defect_id = uuid.uuid4().hex[:12]
    trace = "".join(traceback.format_tb(error.__traceback__))
    logger.error("defect %s in %s: %s\n%s", defect_id, where, type(error).__name__, trace)
    return InternalError(f"internal error {defect_id}; look for this id in the server's log")
