"""The one format of the logs of front and engines."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

from ts_stateful.clock import rfc3339

__all__ = ["LOG_FORMAT", "LOG_LEVEL", "configure_logs"]

LOG_FORMAT = "TS_STATEFUL_LOG_FORMAT"
"""The variable that chooses `text` or `json`."""

LOG_LEVEL = "TS_STATEFUL_LOG_LEVEL"
"""The variable that names the least level of a line, `INFO` by default."""

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logs(process: str, environ: Mapping[str, str] = os.environ) -> None:
    """Write the log of this process to standard error; `process` is its name in JSON."""
    level = environ.get(LOG_LEVEL, "").upper()
    handler = logging.StreamHandler()
    is_json = environ.get(LOG_FORMAT, "").lower() == "json"
    handler.setFormatter(JsonFormatter(process) if is_json else logging.Formatter(_TEXT))
    known = isinstance(logging.getLevelName(level), int)
    logging.basicConfig(level=level if known else logging.INFO, handlers=[handler])


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with its trace if it has one."""
        line = {
            "time": rfc3339(record.created),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
