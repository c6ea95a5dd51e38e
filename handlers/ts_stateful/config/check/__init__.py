"""Rules for configurations, applied at start and offline (`ts-stateful check`).

A configuration with which TorchServe 0.12.0 would hang, leak or lose sessions is an error; a slow or risky one is a warning.
"""

from ts_stateful.config.check.check import check_config, check_file, read_settings
from ts_stateful.config.check.checkpoint import check_checkpoint
from ts_stateful.config.check.finding import Finding
from ts_stateful.config.check.summary import summary

__all__ = ["Finding", "check_checkpoint", "check_config", "check_file", "read_settings", "summary"]
