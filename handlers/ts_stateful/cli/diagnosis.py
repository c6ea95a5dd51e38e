"""What is wrong with a model, from what was seen of it; in words for whoever runs TorchServe.

Owns the meaning of TorchServe 0.12.0's failures, and which of them its management API can put right. Asks nobody.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from ts_stateful.cli.evidence import Evidence, Failure
from ts_stateful.client.errors import DeadlineExceeded, ServerRefused, ServerUnreachable
from ts_stateful.client.management import Description
from ts_stateful.config.check import Finding
from ts_stateful.config.check.finding import error, warning
from ts_stateful.config.check.modes import check_modes
from ts_stateful.config.schema import FrontendConfig
from ts_stateful.protocol.answers import HelloAnswer
from ts_stateful.protocol.errors import (
    EngineUnavailable,
    StatefulError,
    StoreFailed,
    TooManySessions,
)
from ts_stateful.protocol.profile import Profile

__all__ = ["RESTART", "Diagnosis", "Repair", "diagnose", "in_words"]

_DOCTOR = "`ts-stateful doctor --repair`"
RESTART = "restart TorchServe; sessions that are in a store go on behind it"
_BY_HAND = f"{RESTART}; or {_DOCTOR}, which registers the model anew, where TorchServe runs with enable_model_api=true"


class Repair(enum.Enum):
    """What the management API can do about it."""

    NONE = "none"
    SCALE = "scale"  # to no worker and back to one
    REGISTER = "register"  # unregister the model, and register it again


class Diagnosis(NamedTuple):
    """What is wrong, errors first, and what may put it right. `may_pass`: by itself, if one waits."""

    findings: list[Finding]
    repair: Repair = Repair.NONE
    may_pass: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is that sessions would suffer from."""
        return all(finding.severity != "error" for finding in self.findings)


def diagnose(evidence: Evidence) -> Diagnosis:
    """What the evidence means."""
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
        findings += [*others, *_engine(evidence), *_settings(evidence), *_session(evidence)]
    if repair is Repair.SCALE and isinstance(evidence.description, Description):
        repair = Repair.REGISTER if evidence.description.stateful else repair
    findings.sort(key=lambda finding: finding.severity != "error")
    return Diagnosis(findings, repair, may_pass=_may_pass(evidence))


def _may_pass(evidence: Evidence) -> bool:
    """Whether it may have much to do, or TorchServe start another worker, as it does in the continuous profile."""
    description = evidence.description
    if evidence.worker is None or not isinstance(description, Description):
        return False
    if evidence.is_gone:
        return description.continuous_batching and not description.stateful
    return description.is_ready and bool(description.workers)


def in_words(evidence: Evidence, diagnosis: Diagnosis) -> Iterator[str]:
    """The lines that say it."""
    for finding in diagnosis.findings:
        yield f"{finding.severity}: {finding.key}: {finding.message}"
        yield f"  cure: {finding.cure}"
    hello = evidence.hello
    if diagnosis.is_healthy and isinstance(hello, HelloAnswer):
        yield f"ok: {evidence.model} answers: {hello.profile} profile, version {hello.version}"


def _management(evidence: Evidence) -> Iterator[Finding]:
    """What stands in the way of asking TorchServe itself."""
    refused = evidence.description
    if isinstance(refused, Description):
        return
    nobody = isinstance(refused, ServerUnreachable)
    if nobody and isinstance(evidence.worker, ServerUnreachable):
        yield error(
            "TorchServe",
            f"nobody listens, neither for requests ({evidence.worker.message}) nor for management ({refused.message})",
            "start it; if it listens elsewhere, say where: --url and --management-url",
        )
    elif evidence.is_unregistered:
        others = ", ".join(evidence.models) or "none"
        yield error(
            "model",
            f"TorchServe has no model {evidence.model}; it has: {others}",
            "name one of them (--model), or start TorchServe with it (`--models chat=chat.mar`)",
        )
    elif _kind(refused) == "InvalidKeyException":
        yield warning(
            "management API",
            "TorchServe's token authorization is on, and the management key is missing, wrong or older than an hour",
            "give `management` of its key_file.json as --management-token, or in TS_STATEFUL_MANAGEMENT_TOKEN",
        )
    else:
        yield warning(
            "management API",
            f"does not answer as such ({refused.message}), so workers are not seen and nothing can be repaired",
            "run this on the machine of TorchServe, or say where the API is: --management-url",
        )


def _worker(evidence: Evidence, failure: Failure) -> tuple[Finding, Repair]:
    """Why requests get no answer, not even from the worker."""
    description = evidence.description if isinstance(evidence.description, Description) else None
    if _kind(failure) == "InvalidKeyException":
        return error(
            "token",
            "TorchServe's token authorization is on, and the inference key is missing, wrong or older than an hour",
            "give `inference` of its key_file.json as --token, or in TS_STATEFUL_TOKEN",
        ), Repair.NONE
    if isinstance(failure, ServerUnreachable):
        cure = "say where TorchServe takes requests: --url"
        return error("inference API", f"nobody listens: {failure.message}", cure), Repair.NONE
    if description is None:
        cure = "give --management-url, so that its workers are seen; or restart TorchServe"
        return error("worker", f"requests get no answer: {failure.message}", cure), Repair.NONE
    if not description.workers:
        return error("worker", "the model has none: it was scaled to 0", _DOCTOR), Repair.SCALE
    if evidence.is_starting:
        return error(
            "worker",
            "it is being started: the model is loaded, or its start fails again and again",
            "wait, and look into TorchServe's log; a configuration that is refused is found by `ts-stateful check`",
        ), Repair.NONE
    if not description.is_ready and evidence.is_starting is None:
        return error(
            "worker",
            "it is not ready; whether it is being started or gone is not to be seen from here",
            "run this on the machine of TorchServe",
        ), Repair.NONE
    if not description.is_ready or evidence.is_gone:
        message = "its process is gone, and TorchServe starts no other one (/ping says Healthy for some minutes all the same)"
        return error("worker", message, f"{_DOCTOR}, or {RESTART}"), Repair.SCALE
    if not isinstance(failure, DeadlineExceeded):
        return _refused(description, failure)
    return _passes_nothing_on(evidence, description)


def _refused(description: Description, failure: Failure) -> tuple[Finding, Repair]:
    status = getattr(failure, "status", 0)
    if status < 500:  # not TorchServe, or not this one
        return error(
            "inference API",
            f"what answers there is not TorchServe with this model: {failure.message}",
            "say where TorchServe takes requests: --url",
        ), Repair.NONE
    if status == 503 and description.stateful:
        return error(
            "sessions",
            "TorchServe has no place for another session: every id that it has met holds one until it is idle for"
            " sequenceMaxIdleMSec, and for ever if a worker was lost meanwhile",
            f"wait for so long; if it stays so, {RESTART}",
        ), Repair.NONE
    if status == 503:
        message = f"TorchServe's queue is full: {description.waiting} requests wait for a place (jobQueueSize)"
        return error(
            "queue", message, "send less, or raise batchSize; if it stays so, " + RESTART
        ), Repair.NONE
    return error("worker", f"requests are refused: {failure.message}", _DOCTOR), Repair.SCALE


def _passes_nothing_on(evidence: Evidence, description: Description) -> tuple[Finding, Repair]:
    if evidence.new_ids:
        return error(
            "sessions",
            "those that were open when a worker was lost, or scaled down, hang for ever, and hold their places; new ones are"
            " served",
            _BY_HAND,
        ), Repair.REGISTER
    reason = ""
    if description.continuous_batching and not description.stateful:
        reason = "; in this profile one `GET /models/...?customized=true` does that: TorchServe hands it out again and again"
    return error(
        "worker",
        f"TorchServe calls it READY and passes no request on to it ({description.waiting} wait){reason}",
        _BY_HAND,
    ), Repair.REGISTER


def _lost_but_serving(evidence: Evidence) -> Iterator[Finding]:
    description = evidence.description
    if isinstance(description, Description) and not description.is_ready:
        yield error(
            "worker",
            "it answers, but TorchServe takes it for lost, as one before it died: streams that were under way then hang, and"
            " /ping turns Unhealthy some minutes behind it",
            f"{_DOCTOR}, which breaks off what is in flight; clients of this package go on by themselves",
        )


def _workers(evidence: Evidence) -> Iterator[Finding]:
    """What was changed by the management API since the configuration was checked."""
    description = evidence.description
    if isinstance(description, Description) and len(description.workers) > 1:
        yield error(
            "workers",
            f"{len(description.workers)} of them: requests of one session reach workers that do not share it, or streams stall",
            f"{_DOCTOR}, which leaves one; for more devices set `handler.engines: N`",
        )


def _engine(evidence: Evidence) -> Iterator[Finding]:
    failure = evidence.hello
    if isinstance(failure, EngineUnavailable | DeadlineExceeded):
        yield error(
            "engine",
            "the worker answers, its engine does not: it is being started again, or it hangs and is killed after heartbeatSec",
            "wait for handler.restartDeadlineSec; if it stays so, TorchServe's log says where the engine's log is",
        )
    elif failure is not None and not isinstance(failure, HelloAnswer):
        yield error("engine", failure.message, "see TorchServe's log")


def _settings(evidence: Evidence) -> Iterator[Finding]:
    """What TorchServe has made of the settings: what would hang is refused at start, but can be changed since."""
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


def _session(evidence: Evidence) -> Iterator[Finding]:
    """Whether a session can be had, and kept."""
    failure = evidence.session
    if isinstance(failure, StoreFailed):
        yield error(
            "store",
            f"no session can be written down: {failure.message}",
            "see that the store of handler.store.url is there and has room; turns end again as soon as it takes them",
        )
    elif isinstance(failure, TooManySessions):
        yield warning("sessions", "all places are taken", "close some, or raise maxNumSequence")
    elif isinstance(failure, StatefulError):
        yield error(
            "sessions",
            f"none can be opened: {failure.code}: {failure.message}",
            "see TorchServe's log",
        )
    elif failure is not None:
        yield error("sessions", f"none can be opened: {failure.message}", "see TorchServe's log")
    elif evidence.is_saved is False:
        yield warning(
            "store",
            "it takes no writes: sessions are served, and lost with their engine (`policy: best_effort`)",
            "see that the store of handler.store.url is there and has room",
        )


def _kind(failure: Description | Failure) -> str | None:
    return failure.kind if isinstance(failure, ServerRefused) else None
