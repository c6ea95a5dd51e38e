"""Repairs by TorchServe's management API. A failure in the middle must not leave a model without a worker."""

from __future__ import annotations

import contextlib
from typing import Protocol

from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ServerRefused,
    ServerUnreachable,
)
from ts_stateful.client.management import Description, Management
from ts_stateful.clock import SYSTEM_CLOCK
from ts_stateful.doctor.diagnosis import RESTART, Repair
from ts_stateful.doctor.evidence import Evidence

__all__ = ["RepairOutput", "repaired"]

_STARTS_S = 10.0  # for the start of a worker, in addition to its model's load time
_NOT_FOUND, _METHOD_NOT_ALLOWED = 404, 405


class RepairOutput(Protocol):
    """Lines for operators, as on a terminal."""

    def line(self, text: str = "") -> None:
        """Print a line."""


def repaired(
    management: Management, evidence: Evidence, repair: Repair, output: RepairOutput
) -> bool:
    """Repair the model and print each step. Return True if TorchServe did everything."""
    description, began = evidence.description, SYSTEM_CLOCK.monotonic()
    if repair is Repair.NONE or not isinstance(description, Description):
        output.line("not repaired: no request to the management API can repair this")
        return False
    try:
        if repair is not Repair.REGISTER or not _registered(management, description, output):
            if evidence.new_ids:  # scaling would also break the sessions that work now
                output.line("not repaired: scaling the model would not help")
                return False
            _scale(management, description, output)
            if description.stateful:
                output.line(f"  sessions that were open hang; {RESTART}")
    except ClientError as error:
        output.line(f"error: management API: {error.message}")
        output.line(f"  cure: see TorchServe's log, or {RESTART}")
        return False
    output.line(f"repair: done, in {SYSTEM_CLOCK.monotonic() - began:.1f} s")
    return True


def _registered(management: Management, description: Description, output: RepairOutput) -> bool:
    model, url = description.model_name, description.model_url
    try:
        management.unregister(model)
    except ServerRefused as error:
        if error.status == _METHOD_NOT_ALLOWED:
            output.line(
                "repair: enable_model_api is not set, so the model cannot be registered again"
            )
            return False
        if error.status != _NOT_FOUND:  # an earlier repair may have stopped here
            raise
    except (DeadlineExceeded, ServerUnreachable):
        pass  # TorchServe may still unregister it, so it must be registered
    output.line(f"repair: unregister {model}, and register it again from {url}")
    management.register(model, url, description.startup_timeout + _STARTS_S)
    return True


def _scale(management: Management, description: Description, output: RepairOutput) -> None:
    output.line(f"repair: scale {description.model_name} to no worker, and back to one")
    try:
        with contextlib.suppress(DeadlineExceeded):  # TorchServe continues with it
            management.scale(description.model_name, 0, _STARTS_S)
    finally:  # an interrupted repair must not leave a model without a worker
        management.scale(description.model_name, 1, description.startup_timeout + _STARTS_S)
