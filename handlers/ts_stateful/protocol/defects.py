"""What becomes of an unexpected exception: a log entry for us, an id for the client.

Owns the rule that the text of an exception reaches neither a client nor the log, since it may quote a prompt.
"""

from __future__ import annotations

import logging
import traceback
import uuid

from ts_stateful.protocol.errors import InternalError

__all__ = ["defect"]

logger = logging.getLogger(__name__)


def defect(error: Exception, where: str) -> InternalError:
    """Logs the kind and the trace of an exception; the answer has an id by which they are found.

    `where` says what was being done, in words that may be logged.
    """
    defect_id = uuid.uuid4().hex[:12]
    trace = "".join(traceback.format_tb(error.__traceback__))
    logger.error("defect %s in %s: %s\n%s", defect_id, where, type(error).__name__, trace)
    return InternalError(f"internal error {defect_id}; the server's log has its trace")
