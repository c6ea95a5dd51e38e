"""The meaning of TorchServe 0.12.0's failures, and the repairs that its management API offers."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from ts_stateful.client.errors import DeadlineExceeded, ServerRefused, ServerUnreachable
from ts_stateful.client.management import Description, Readiness
from ts_stateful.config.check import Finding
from ts_stateful.config.check.finding import error, warning
from ts_stateful.config.check.modes import check_modes
from ts_stateful.config.schema import FrontendConfig
from ts_stateful.doctor.answers import (
    MODEL_CURE,
    SEE_LOG,
    URL_CURE,
    facts_of,
    front_findings,
    session_findings,
)
from ts_stateful.doctor.evidence import Evidence, Failure
from ts_stateful.protocol.answers import HelloAnswer
from ts_stateful.protocol.errors import EngineUnavailable, ModelNotFound
from ts_stateful.protocol.profile import Profile

__all__ = ["RESTART", "Diagnosis", "Repair", "diagnose", "in_words"]

_DOCTOR = "run `ts-stateful doctor --repair`"
RESTART = "restart TorchServe; sessions in a store continue afterwards"
_BY_HAND = f"{RESTART}; or, with enable_model_api=true, {_DOCTOR}, which registers the model again"
_KEY = (
    "TorchServe's token authorization is on, and the {} key is missing, wrong or older than an hour"
)


class Repair(enum.Enum):
    """An action of the management API."""

    NONE = "none"
    SCALE = "scale"  # to no worker and back to one
    REGISTER = "register"  # unregister the model, and register it again


class Diagnosis(NamedTuple):
    """Findings, errors first, and the repair. `may_pass`: the model may recover without one."""

    findings: list[Finding]
    repair: Repair = Repair.NONE
    may_pass: bool = False

    @property
    def is_healthy(self) -> bool:
        """Return True if no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)


def diagnose(evidence: Evidence) -> Diagnosis:
    """Explain the evidence."""
    if evidence.was_replaced is not None:
        return _diagnose_workers(evidence)
    if isinstance(evidence.description, Readiness):
        own = list(front_findings(evidence, evidence.description))
        own += session_findings(evidence) if Diagnosis(own).is_healthy else ()
        return Diagnosis(sorted(own, key=lambda finding: finding.severity != "error"))
    findings = list(_management(evidence))
    repair = Repair.NONE
    if any(finding.severity == "error" for finding in findings):
        return Diagnosis(findings)
    if evidence.worker is not None:
        finding, repair = _worker(evidence, evidence.worker)
        findings.append(finding)
    else:
        others = [*_lost_but_serving(evidence), *_workers(evidence)]
        repair = Repair.SCALE if others else Repair.NONE
        findings += [*others, *_engine(evidence), *_settings(evidence), *session_findings(evidence)]
    if repair is Repair.SCALE and isinstance(evidence.description, Description):
        repair = Repair.REGISTER if evidence.description.stateful else repair
    findings.sort(key=lambda finding: finding.severity != "error")
    return Diagnosis(findings, repair, may_pass=_may_pass(evidence))


def _diagnose_workers(evidence: Evidence) -> Diagnosis:
    """Explain evidence without a request."""
    description = evidence.description
    if evidence.is_unregistered:
        message = f"TorchServe has no model {evidence.model}: it was unregistered, or its repair stopped halfway"
        return Diagnosis([error("model", message, "none is needed: a repair is repeated")])
    if not isinstance(description, Description) or not evidence.has_exited:
        return Diagnosis([])
    message = f"the process of {evidence.model} exited, and TorchServe starts no other that works"
    finding = error("worker", message, "none is needed: the server repairs it")
    discards_queue = description.stateful or evidence.was_replaced
    return Diagnosis([finding], Repair.REGISTER if discards_queue else Repair.SCALE)


def _may_pass(evidence: Evidence) -> bool:
    """Return True if the model may be busy, or if TorchServe will start another worker (`continuous` profile)."""
    description = evidence.description
    if evidence.worker is None or not isinstance(description, Description):
        return False
    if evidence.has_exited:
        # If it is READY without a process, the thread that would start another worker has ended.
        return description.continuous_batching and not (
            description.stateful or description.is_ready
        )
    return description.is_ready and bool(description.workers)


def in_words(evidence: Evidence, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the lines of a diagnosis."""
    for finding in diagnosis.findings:
        yield f"{finding.severity}: {finding.key}: {finding.message}"
        yield f"  cure: {finding.cure}"
    hello = evidence.hello
    if diagnosis.is_healthy and isinstance(hello, HelloAnswer):
        yield f"ok: {evidence.model} answers: {hello.profile} profile, version {hello.version}"
    for name, fact in facts_of(evidence).items():
        pairs = fact.items() if isinstance(fact, dict) else ()
        yield f"{name}: {', '.join(f'{key} {value}' for key, value in pairs) or fact}"


def _management(evidence: Evidence) -> Iterator[Finding]:
    """Find the obstacles to examining TorchServe itself."""
    refused = evidence.description
    if isinstance(refused, Description | Readiness):
        return
    is_silent = isinstance(refused, ServerUnreachable)
    if is_silent and isinstance(evidence.worker, ServerUnreachable):
        yield error(
            "TorchServe",
            f"no server listens for requests ({evidence.worker.message}) or for management ({refused.message})",
            "start TorchServe, or give its addresses with --url and --management-url",
        )
    elif evidence.is_unregistered:
        others = ", ".join(evidence.models) or "none"
        yield error(
            "model",
            f"TorchServe has no model {evidence.model}; it has: {others}",
            "name one of them with --model or in --url, or start TorchServe with `--models chat=chat.mar`",
        )
    elif _kind(refused) == "InvalidKeyException":
        yield warning(
            "management API",
            _KEY.format("management"),
            "give `management` of its key_file.json as --management-token, or in TS_STATEFUL_MANAGEMENT_TOKEN",
        )
    else:
        yield warning(
            "management API",
            f"it does not answer ({refused.message}), so workers are invisible and repairs impossible",
            "run the doctor on TorchServe's machine, or give the API's address with --management-url",
        )


def _worker(evidence: Evidence, failure: Failure) -> tuple[Finding, Repair]:
    """Explain requests without any answer, even from the worker."""
    description = evidence.description if isinstance(evidence.description, Description) else None
    if _kind(failure) == "InvalidKeyException":
        cure = "give `inference` of its key_file.json as --token, or in TS_STATEFUL_TOKEN"
        return error("token", _KEY.format("inference"), cure), Repair.NONE
    if isinstance(failure, ServerUnreachable):
        return error(
            "inference API", f"no server listens: {failure.message}", URL_CURE
        ), Repair.NONE
    if isinstance(failure, ModelNotFound):
        return error("model", failure.message, MODEL_CURE), Repair.NONE
    if description is None:
        cure = "give --management-url, so that workers are visible; or restart TorchServe"
        return error("worker", f"requests get no answer: {failure.message}", cure), Repair.NONE
    if not description.workers:
        return error("worker", "the model has none: it was scaled to 0", _DOCTOR), Repair.SCALE
    if evidence.is_starting:
        return error(
            "worker",
            "it is starting: it loads the model, or its start fails repeatedly",
            f"wait, and {SEE_LOG}; `ts-stateful check` finds configurations that are refused at start",
        ), Repair.NONE
    if not description.is_ready and evidence.is_starting is None:
        return error(
            "worker",
            "it is not ready; from this machine, a start and a crash look the same",
            "run the doctor on TorchServe's machine",
        ), Repair.NONE
    if not description.is_ready or evidence.has_exited:
        message = "its process exited, and TorchServe starts no other (/ping stays Healthy for some minutes)"
        return error("worker", message, f"{_DOCTOR}, or {RESTART}"), Repair.SCALE
    if not isinstance(failure, DeadlineExceeded):
        return _refused(description, failure)
    return _passes_nothing_on(evidence, description)


def _refused(description: Description, failure: Failure) -> tuple[Finding, Repair]:
    status = getattr(failure, "status", 0)
    if status < 500:
        message = f"another server than TorchServe with this model answers: {failure.message}"
        return error("inference API", message, URL_CURE), Repair.NONE
    if status == 503 and description.stateful:
        return error(
            "sessions",
            "TorchServe has no free place for a session. Every id keeps a place until it is idle for sequenceMaxIdleMSec;"
            " if a worker died meanwhile, it keeps the place for ever",
            f"wait for that time; if the error stays, {RESTART}",
        ), Repair.NONE
    if status == 503:
        message = f"TorchServe's queue is full: {description.waiting} requests wait (jobQueueSize)"
        cure = f"send fewer requests, or raise batchSize; if the error stays, {RESTART}"
        return error("queue", message, cure), Repair.NONE
    return error("worker", f"requests are refused: {failure.message}", _DOCTOR), Repair.SCALE


def _passes_nothing_on(evidence: Evidence, description: Description) -> tuple[Finding, Repair]:
    if evidence.new_ids:
        return error(
            "sessions",
            "sessions that were open when a worker died or was scaled down hang for ever and keep their places; new sessions"
            " work",
            _BY_HAND,
        ), Repair.REGISTER
    reason = ""
    if description.continuous_batching and not description.stateful:
        reason = (
            ". In this profile one `GET /models/...?customized=true` causes that: TorchServe sends it to the worker again and"
            " again, and no other request"
        )
    return error(
        "worker",
        f"TorchServe calls it READY and sends it no request ({description.waiting} wait){reason}",
        _BY_HAND,
    ), Repair.REGISTER


def _lost_but_serving(evidence: Evidence) -> Iterator[Finding]:
    description = evidence.description
    if isinstance(description, Description) and not description.is_ready:
        yield error(
            "worker",
            "it answers, but TorchServe considers it dead because an earlier one died: streams of that time hang, and /ping"
            " turns Unhealthy after some minutes",
            f"{_DOCTOR}. It breaks requests in flight; clients of this package resume them",
        )


def _workers(evidence: Evidence) -> Iterator[Finding]:
    """Find workers that the management API added after the configuration was checked."""
    description = evidence.description
    if isinstance(description, Description) and len(description.workers) > 1:
        yield error(
            "workers",
            f"the model has {len(description.workers)}: requests of a session reach workers without it, or streams stall",
            f"{_DOCTOR}, which leaves one; for more devices set `handler.engines: N`",
        )


def _engine(evidence: Evidence) -> Iterator[Finding]:
    failure = evidence.hello
    if isinstance(failure, EngineUnavailable | DeadlineExceeded):
        yield error(
            "engine",
            "the worker answers, its engine does not: it is starting again, or it hangs and is killed after heartbeatSec",
            "wait for handler.restartDeadlineSec; if the error stays, TorchServe's log has the path of the engine's log",
        )
    elif failure is not None and not isinstance(failure, HelloAnswer):
        yield error("engine", failure.message, SEE_LOG)


def _settings(evidence: Evidence) -> Iterator[Finding]:
    """Check TorchServe's current settings, which the management API can change after the start."""
    hello, description = evidence.hello, evidence.description
    if not isinstance(hello, HelloAnswer) or not isinstance(description, Description):
        return
    frontend = FrontendConfig(
        batch_size=description.batch_size,
        continuous_batching=description.continuous_batching,
        sequence_batching=description.stateful,
        async_communication=hello.profile == Profile.ASYNC.value,
        max_num_sequence=hello.limits.max_sessions,
        sequence_max_idle_ms=int(hello.limits.idle_s * 1000),
    )
    for finding in check_modes(frontend):
        if finding.severity == "error":
            yield finding


def _kind(failure: Description | Readiness | Failure) -> str | None:
    return failure.kind if isinstance(failure, ServerRefused) else None
