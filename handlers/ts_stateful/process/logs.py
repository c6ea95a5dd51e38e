"""The one format of the logs of fronts, workers and engines."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

from ts_stateful.clock import rfc3339
from ts_stateful.config.schema import ConfigError
from ts_stateful.process.worker.supervisor import EngineDied

__all__ = ["LOG_FORMAT", "LOG_LEVEL", "configure_logs", "format_worker_log", "make_formatter"]

LOG_FORMAT = "TS_STATEFUL_LOG_FORMAT"
"""The variable that chooses `text` or `json`."""

LOG_LEVEL = "TS_STATEFUL_LOG_LEVEL"
"""The variable that names the least level of a line, `INFO` by default."""

_LOAD_FAILED = "500 - Unknown exception"  # of TorchServe's worker
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logs(process: str, environ: Mapping[str, str] = os.environ) -> None:
    """Write the log of this process to standard error; `process` is its name in JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(make_formatter(process, environ))
    logging.basicConfig(level=_level(environ), handlers=[handler])


def format_worker_log(environ: Mapping[str, str] = os.environ) -> None:
    """Give the log of TorchServe's worker, which TorchServe reads line by line, the same format and level."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_WorkerFormatter(make_formatter("worker", environ)))
    logging.getLogger().setLevel(_level(environ))


def make_formatter(process: str, environ: Mapping[str, str]) -> logging.Formatter:
    """Return the format of a line; `process` is its name in JSON."""
    is_json = environ.get(LOG_FORMAT, "").lower() == "json"
    return JsonFormatter(process) if is_json else logging.Formatter(_TEXT)


class _WorkerFormatter(logging.Formatter):
    """Another formatter, and TorchServe's metrics as they are: its frontend finds them by their first characters."""

    def __init__(self, other: logging.Formatter) -> None:
        super().__init__()
        self._other = other

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if message.startswith("[METRICS]"):
            return message
        reason = _reason(record.exc_info[1]) if record.exc_info else None
        if reason is not None:
            text = message if reason in message else f"{message} {reason}"
            changes = {"msg": text, "args": None, "exc_info": None, "exc_text": None}
            record = logging.makeLogRecord({**vars(record), **changes})
        return self._other.format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the `fields` of the record if it has some."""

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
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _reason(error: BaseException | None) -> str | None:
    """Return the text that replaces the trace of an error, in which nobody would find it; None: the trace has to stay."""
    if str(error) == _LOAD_FAILED:  # TorchServe ends its worker for an error that was logged
        return ""
    return str(error) if isinstance(error, ConfigError | EngineDied) else None


def _level(environ: Mapping[str, str]) -> int:
    level = logging.getLevelName(environ.get(LOG_LEVEL, "").upper())
    return level if isinstance(level, int) else logging.INFO
