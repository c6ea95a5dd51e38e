"""Whether a configuration works: TorchServe's keys, this package's keys and the profile, judged against each other.

Owns the rules, a module for each thing that they are about. What would hang, leak or lose sessions on TorchServe 0.12.0 is an
error and comes with its cure; what would be slow or risky is a warning. Knows nothing of processes: the same check runs at
start and offline (`ts-stateful check`).
"""

from ts_stateful.config.check.check import check_config, check_file, read_document
from ts_stateful.config.check.finding import Finding
from ts_stateful.config.check.summary import summary

__all__ = ["Finding", "check_config", "check_file", "read_document", "summary"]
