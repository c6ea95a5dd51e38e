"""The parts of a model's front that all servers share: its checks, and the way of its requests to the engines."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from ts_stateful.config.check import check_config
from ts_stateful.config.check.checkpoint import check_weights
from ts_stateful.config.given_model import resolve_model
from ts_stateful.config.schema import Config, ConfigError
from ts_stateful.frontend.admission import Admission
from ts_stateful.frontend.audit import AuditLog
from ts_stateful.frontend.dialects import Dialects
from ts_stateful.frontend.inbox import Mailbox
from ts_stateful.frontend.intake import Dispatching, Intake, Parser
from ts_stateful.frontend.parsing.headers import HeaderReader
from ts_stateful.frontend.parsing.limits import BodyLimits, HeldBytes
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.frontend.parsing.steps import StepParser
from ts_stateful.frontend.request_quotas import RequestQuotas
from ts_stateful.principals.authenticator import Authenticator
from ts_stateful.protocol.profile import Profile

__all__ = ["Ends", "ServedName", "body_limits", "check_model", "make_intake"]

logger = logging.getLogger(__name__)


def check_model(config: Config, folder: Path, *, torchserve: bool) -> None:
    """Log the warnings about a configuration, for TorchServe's frontend or another one. `folder` has the model's files.

    Raises:
        ConfigError: it would hang, leak or lose something, or weights are missing; the message has the remedy.
    """
    findings = check_config(config, torchserve=torchserve)
    for finding in findings:
        if finding.severity == "warning":
            logger.warning("%s", finding)
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        raise ConfigError("model-config.yaml: " + "; ".join(errors))
    model = Path(resolve_model(config.handler.model, folder))
    # An engine finds it as well, but only after it has imported what reads weights.
    if config.state is None and model.is_dir():
        for finding in check_weights(model):
            raise ConfigError(finding.reason)


class ServedName(NamedTuple):
    """The name under which a server has a model, and its version."""

    name: str
    version: str


class Ends(NamedTuple):
    """The ends of a model's requests: its engines, and the queue of their events."""

    dispatcher: Dispatching
    mailbox: Mailbox


def make_intake(
    config: Config,
    model: ServedName,
    profile: Profile,
    headers: HeaderReader,
    authenticator: Authenticator,
    ends: Ends,
) -> Intake:
    """Return the intake of a model that a front of this `profile` serves as `model`."""
    settings, dispatcher = config.engine, ends.dispatcher
    limits = body_limits(config, dispatcher)
    parser: Parser
    if config.state is not None:
        parser = StepParser(profile, headers.names, config.state, limits, model.version)
    else:
        handler = config.handler
        dialects = Dialects(model.name, handler.adapters, strict=handler.strict_requests)
        keeps = handler.stateful_sessions
        parser = RequestParser(profile, headers.names, dialects, limits, keeps_sessions=keeps)
    audit, quotas = AuditLog(settings.audit), RequestQuotas(settings.quotas, dispatcher)
    return Intake(
        dispatcher,
        ends.mailbox,
        parser,
        headers,
        Admission(authenticator, settings.client_ids, audit, quotas, settings.allowed_origins),
    )


def body_limits(config: Config, held: HeldBytes | None = None) -> BodyLimits:
    """Return the limits of a model's requests, those of the bytes in flight included that `held` counts."""
    max_images = 0 if config.state is not None else config.handler.media.max_images
    return BodyLimits(config.engine.limits, max_images, held)
