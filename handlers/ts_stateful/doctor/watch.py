"""Repeated examination of a model, which repairs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from ts_stateful.client.management import Description, Management
from ts_stateful.doctor.diagnosis import Repair, diagnose, in_words
from ts_stateful.doctor.evidence import Evidence
from ts_stateful.doctor.repair import RepairOutput, repaired

__all__ = ["Examiner", "Watch"]

# Looks in a row that must find the same before a repair. A repair breaks requests, and a busy server is slow to answer, too.
_SURE = 2
_MAY_PASS = 6
_MOST_PATIENCE = 32


class Examiner(Protocol):
    """The way to examine one model."""

    @property
    def management(self) -> Management:
        """The management API of its TorchServe."""

    def examine(self, before: Evidence | None) -> Evidence:
        """Examine the model; `before` is the evidence of the last look."""


class Watch:
    """A series of looks at one model. It prints changes, and repairs the model where `repair` is set.

    After a repair that does not help, it waits for twice as many looks, up to `most_patience` times as many.
    """

    def __init__(
        self,
        examiner: Examiner,
        output: RepairOutput,
        *,
        repair: bool,
        most_patience: int = _MOST_PATIENCE,
    ) -> None:
        self._examiner = examiner
        self._output = output
        self._repairs = repair
        self._before: Evidence | None = None
        self._printed: object = None
        self._wanted, self._in_a_row = Repair.NONE, 0
        self._patience, self._most_patience = 1, most_patience
        # From before a repair. A repair that fails may leave the model unregistered.
        self._repaired: Description | None = None

    @property
    def is_repairing(self) -> bool:
        """Return True if a repair may have stopped halfway, with the model unregistered."""
        return self._repaired is not None

    def look_again(self) -> None:
        """Look once, print changes, and repair if it is time."""
        self._before = evidence = self._examiner.examine(self._before)
        diagnosis = diagnose(evidence)
        found = [(finding.severity, finding.key) for finding in diagnosis.findings]
        if found != self._printed:
            self._printed = found
            for line in in_words(evidence, diagnosis):
                self._output.line(line)
        if diagnosis.is_healthy:
            self._patience, self._repaired = 1, None
        wanted = diagnosis.repair
        if self._repaired is not None and evidence.is_unregistered:
            evidence, wanted = replace(evidence, description=self._repaired), Repair.REGISTER
        self._in_a_row = self._in_a_row + 1 if wanted is self._wanted else 1
        self._wanted = wanted
        looks = (_MAY_PASS if diagnosis.may_pass else _SURE) * self._patience
        if self._repairs and wanted is not Repair.NONE and self._in_a_row >= looks:
            self._repair(evidence)

    def _repair(self, evidence: Evidence) -> None:
        assert isinstance(evidence.description, Description)
        self._repaired = evidence.description
        repaired(self._examiner.management, evidence, self._wanted, self._output)
        self._in_a_row = 0
        self._patience = min(2 * self._patience, self._most_patience)
        self._printed = self._before = None  # the next look prints the outcome
