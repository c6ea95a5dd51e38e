"""`ts-stateful doctor --watch`: looks at a model again and again, says what has changed, and repairs it.

Owns when a repair is worth what it breaks off: a server that has all it can do is slow to answer, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ts_stateful.cli.diagnosis import Repair, diagnose, in_words
from ts_stateful.cli.evidence import Evidence
from ts_stateful.cli.repair import repaired
from ts_stateful.client.management import Description, Management

__all__ = ["Watch"]

# Looks in a row that have to find the same, before anything is done about it.
_SURE = 2
_MAY_PASS = 6
_MOST_PATIENCE = 32


class Watch:
    """Looks at one model, by `look`, which gets what was seen before, and repairs it where `repair` is set.

    A repair that does not help is tried again behind twice as many looks, up to 32 times as many.
    """

    def __init__(
        self,
        look: Callable[[Evidence | None], Evidence],
        management: Management,
        *,
        repair: bool,
        say: Callable[[str], None],
    ) -> None:
        self._look = look
        self._management = management
        self._repairs = repair
        self._say = say
        self._before: Evidence | None = None
        self._told: object = None
        self._wanted, self._in_a_row = Repair.NONE, 0
        self._patience = 1
        # As it was before a repair, which may have ended without a model.
        self._patient: Description | None = None

    def look_again(self) -> None:
        """One look, and what follows from it."""
        self._before = evidence = self._look(self._before)
        diagnosis = diagnose(evidence)
        told = [(finding.severity, finding.key) for finding in diagnosis.findings]
        if told != self._told:
            self._told = told
            for line in in_words(evidence, diagnosis):
                self._say(line)
        if diagnosis.is_healthy:
            self._patience, self._patient = 1, None
        wanted = diagnosis.repair
        if self._patient is not None and evidence.is_unregistered:
            evidence, wanted = replace(evidence, description=self._patient), Repair.REGISTER
        self._in_a_row = self._in_a_row + 1 if wanted is self._wanted else 1
        self._wanted = wanted
        looks = (_MAY_PASS if diagnosis.may_pass else _SURE) * self._patience
        if self._repairs and wanted is not Repair.NONE and self._in_a_row >= looks:
            self._repair(evidence)

    def _repair(self, evidence: Evidence) -> None:
        assert isinstance(evidence.description, Description)
        self._patient = evidence.description
        repaired(self._management, evidence, self._wanted, self._say)
        self._in_a_row = 0
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._told = self._before = None  # what has become of it is looked for, and told
