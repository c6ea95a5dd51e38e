"""The findings that a server's own answers show: of its sessions and, without TorchServe, of its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from ts_stateful.client.management import Readiness
from ts_stateful.config.check import Finding
from ts_stateful.config.check.finding import error, warning
from ts_stateful.doctor.evidence import Evidence
from ts_stateful.protocol.answers import HelloAnswer
from ts_stateful.protocol.errors import StatefulError, StoreFailed, TooManySessions

__all__ = ["MODEL_CURE", "SEE_LOG", "URL_CURE", "facts_of", "front_findings", "session_findings"]

MODEL_CURE = "name one of them with --model or in --url, or start the server with it"
SEE_LOG = "see the server's log"
URL_CURE = "give the address of the server's inference API with --url"


def facts_of(evidence: Evidence) -> dict[str, Any]:
    """Return what a front without TorchServe has reported of itself; empty for TorchServe."""
    if not isinstance(evidence.description, Readiness):
        return {}
    facts = structs.asdict(evidence.description) | {"model_version": evidence.version}
    if isinstance(evidence.hello, HelloAnswer):
        facts["limits"] = structs.asdict(evidence.hello.limits)
    return {name: fact for name, fact in facts.items() if fact}


def front_findings(evidence: Evidence, readiness: Readiness) -> Iterator[Finding]:
    """Explain the state of a front without TorchServe, which starts its engines again by itself."""
    model, failure = evidence.model, evidence.worker or evidence.hello
    state, others = readiness.models.get(model), ", ".join(readiness.models)
    if state is None:
        message = f"the server has no model {model}; it has: {others}"
        yield error("model", message, MODEL_CURE)
    elif state != "ready":
        message = f"an engine of {model} is starting, or hangs and is killed after heartbeatSec"
        yield error(
            "engine", message, f"wait for restartDeadlineSec; if the error stays, {SEE_LOG}"
        )
    elif failure is not None and not isinstance(failure, HelloAnswer):
        message = f"requests get no answer: {failure.message}"
        yield error("inference API", message, f"{URL_CURE}; or {SEE_LOG}")
    if readiness.status == "draining":
        cure = "run `ts-stateful undrain`, unless the server is about to stop"
        yield error("readiness", "the server drains: it takes no new sessions", cure)
    if state is not None and not evidence.has_metrics:
        yield warning("metrics", f"the address has none of {model}", "give it with --metrics-url")


def session_findings(evidence: Evidence) -> Iterator[Finding]:
    """Find the reasons why a session cannot be opened or kept."""
    failure = evidence.session
    store = "check that the store of handler.store.url is reachable and has room"
    if isinstance(failure, StoreFailed):
        yield error(
            "store",
            f"sessions cannot be written: {failure.message}",
            f"{store}; turns continue as soon as it accepts writes",
        )
    elif isinstance(failure, TooManySessions):
        yield warning("sessions", "all places are taken", "close some, or raise maxNumSequence")
    elif failure is not None:
        code = f"{failure.code}: " if isinstance(failure, StatefulError) else ""
        yield error("sessions", f"no session can be opened: {code}{failure.message}", SEE_LOG)
    elif evidence.is_saved is False:
        yield warning(
            "store",
            "it accepts no writes: sessions work, but are lost with their engine (`policy: best_effort`)",
            store,
        )
