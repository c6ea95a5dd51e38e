"""Putting right what TorchServe's management API can.

Owns the order of a repair: nothing that fails in its middle leaves a model without a worker, if that can be helped. What is
wrong is `diagnosis`'s to say.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from ts_stateful.cli.diagnosis import RESTART, Repair
from ts_stateful.cli.evidence import Evidence
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ServerRefused,
    ServerUnreachable,
)
from ts_stateful.client.management import Description, Management

__all__ = ["repaired"]

_STARTS_S = 10.0  # for a worker to start, beside what its model may take
_NOT_FOUND, _METHOD_NOT_ALLOWED = 404, 405


def repaired(
    management: Management, evidence: Evidence, repair: Repair, say: Callable[[str], None]
) -> bool:
    """Does the repair; returns whether TorchServe has done what it was asked."""
    description, began = evidence.description, time.monotonic()
    if repair is Repair.NONE or not isinstance(description, Description):
        say("not repaired: this is nothing that TorchServe's management API could put right")
        return False
    try:
        if repair is not Repair.REGISTER or not _registered_anew(management, description, say):
            if evidence.new_ids:  # those that are served now would be lost as well
                say("not repaired: to scale the model would not help")
                return False
            _scale(management, description, say)
    except ClientError as error:
        say(f"error: management API: {error.message}")
        say(f"  cure: see TorchServe's log, or {RESTART}")
        return False
    say(f"repair: done, in {time.monotonic() - began:.1f} s")
    return True


def _registered_anew(
    management: Management, description: Description, say: Callable[[str], None]
) -> bool:
    model, url = description.model_name, description.model_url
    try:
        management.unregister(model)
    except ServerRefused as error:
        if error.status == _METHOD_NOT_ALLOWED:
            say(
                "repair: TorchServe registers no models while it runs (enable_model_api is not set)"
            )
            return False
        if error.status != _NOT_FOUND:  # which it is behind a repair that ended here
            raise
    except (DeadlineExceeded, ServerUnreachable):
        pass  # it may be doing it all the same, and then nobody would have the model
    say(f"repair: {model} is unregistered, and registered again from {url}")
    management.register(model, url, description.startup_timeout + _STARTS_S)
    return True


def _scale(management: Management, description: Description, say: Callable[[str], None]) -> None:
    say(f"repair: {description.model_name} is scaled to no worker, and back to one")
    try:
        with contextlib.suppress(DeadlineExceeded):  # it goes on with that
            management.scale(description.model_name, 0, _STARTS_S)
    finally:  # whoever waits no longer must not leave a model without a worker
        management.scale(description.model_name, 1, description.startup_timeout + _STARTS_S)
