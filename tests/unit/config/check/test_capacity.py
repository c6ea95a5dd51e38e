"""Rules about capacity: sessions, engines, places in batch and queues, and the bytes of states."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.plans import LLAMA_8B
from ts_stateful.config.check import Finding, check_config, summary
from ts_stateful.config.schema import load_config

_CONTINUOUS: dict[str, Any] = {
    "continuousBatching": True,
    "batchSize": 64,
    "maxBatchDelay": 1,
    "startupTimeout": 1200,
    "jobQueueSize": 1000,
    "maxNumSequence": 256,
}
_SEQUENCE: dict[str, Any] = {
    **{key: value for key, value in _CONTINUOUS.items() if key != "continuousBatching"},
    "sequenceBatching": True,
    "batchSize": 65,
    "maxNumSequence": 64,
    "sequenceMaxIdleMSec": 60_000,
}
_HIDDEN = {"name": "hidden", "shape": [2, 1024], "datatype": "FP32"}  # 8 KiB a sequence
_STATES: dict[str, Any] = {
    "model": "model.pt",
    "inputs": [{"name": "x", "shape": [4]}],
    "outputs": [{"name": "y", "shape": [4]}],
    "states": [_HIDDEN],
}


def _found(document: dict[str, Any], **handler: Any) -> list[Finding]:
    return check_config(load_config({**document, "handler": handler} if handler else document))


def _of_states(document: dict[str, Any], **handler: Any) -> list[Finding]:
    return _found(document, **{**_STATES, **handler})


def test_enough_capacity_has_no_finding() -> None:
    """For both kinds of models, in both batching profiles."""
    assert _found(_CONTINUOUS) == []
    assert _of_states(_CONTINUOUS) == []
    assert _of_states(_SEQUENCE) == []
    assert _of_states(_SEQUENCE, engines=2, deviceCacheBytes=32 * 8192, maxRows=32) == []


@pytest.mark.parametrize(
    ("document", "handler", "key", "message", "cure"),
    [
        (
            {**_CONTINUOUS, "maxNumSequence": 500, "jobQueueSize": 100},
            {},
            "jobQueueSize",
            "are 164: when all 500 sessions send one at the same time, 336 get",
            "at least 436",
        ),
        (
            {**_CONTINUOUS, "maxSequenceJobQueueSize": 64},
            {},
            "maxSequenceJobQueueSize",
            "64 waiting holds all 64 places",
            "for instance to 8",
        ),
        (
            {**_CONTINUOUS, "maxNumSequence": 3},
            {"engines": 4},
            "handler.engines",
            "4 engines for 3 sessions",
            "at least 4",
        ),
        (
            {**_SEQUENCE, "batchSize": 4001, "maxNumSequence": 4000},
            {},
            "batchSize",
            "up to 4,002",
            "continuousBatching",
        ),
    ],
)
def test_places_are_counted(
    document: dict[str, Any], handler: dict[str, Any], key: str, message: str, cure: str
) -> None:
    """A finding has the numbers, and a sufficient one."""
    [finding] = _found(document, **handler)
    assert (finding.severity, finding.key) == ("warning", key)
    assert message in finding.message
    assert cure in finding.cure


@pytest.mark.parametrize(
    ("document", "num_queued", "cure"),
    [
        (_CONTINUOUS, 64, "set batchSize far above it, for instance to 256"),
        (_SEQUENCE, 1, "use `continuousBatching: true`"),
    ],
)
def test_a_backlog_leaves_room_to_close_sessions(
    document: dict[str, Any], num_queued: int, cure: str
) -> None:
    """TorchServe would pass no `close` on, so that each waits for the other."""
    [finding] = _found(document, maxQueuedSequences=num_queued)
    assert (finding.severity, finding.key) == ("error", "handler.maxQueuedSequences")
    assert cure in str(finding)
    assert _found(_CONTINUOUS, maxQueuedSequences=16) == []


def test_a_batch_too_small_for_sequences_has_a_remedy() -> None:
    """In the sequence profile every open session holds a place in the batch."""
    [finding] = _found({**_SEQUENCE, "batchSize": 8})
    assert (finding.severity, finding.key) == ("error", "maxNumSequence")
    assert "64 sessions with a batchSize of 8" in finding.message
    assert "`batchSize: 65`" in finding.cure


@pytest.mark.parametrize("key", ["jobQueueSize", "sequenceTimeoutMSec"])
def test_a_number_that_torchserve_ignores_is_an_error(key: str) -> None:
    """It ignores everything but 32-bit integers."""
    [finding] = _found({**_CONTINUOUS, key: 2**31})
    assert (finding.severity, finding.key) == ("error", key)
    assert _found({**_CONTINUOUS, key: 2**31 - 1}) == []


@pytest.mark.parametrize(
    ("handler", "key", "message"),
    [
        ({"deviceCacheBytes": 8000}, "handler.deviceCacheBytes", "not one sequence fits"),
        (
            {"deviceCacheBytes": 48 * 8192, "maxRows": 32},
            "handler.deviceCacheBytes",
            "48 slots of 8 KiB in 384 KiB (hidden 2 x 1,024 x 4 bytes (FP32) = 8,192 bytes a sequence) for up to 64",
        ),
        (
            {"deviceCacheBytes": 48 * 8192, "hostCacheBytes": 10 * 8192, "maxRows": 32},
            "handler.hostCacheBytes",
            "and 10 more in host memory",
        ),
        (
            {"deviceCacheBytes": 1 << 30, "maxRows": 128, "fixedRows": True},
            "handler.maxRows",
            "of which 64 are never used",
        ),
        ({"maxRows": 4}, "handler.maxRows", "takes 16 passes of 4"),
    ],
)
def test_states_are_counted(handler: dict[str, Any], key: str, message: str) -> None:
    """Slots by bytes, rows by sequences."""
    [finding] = _of_states(_SEQUENCE, **handler)
    assert (finding.severity, finding.key) == ("warning", key)
    assert message in finding.message


def test_a_pass_needs_a_slot_for_every_row() -> None:
    """Fewer slots than rows make passes smaller."""
    found = _of_states(_SEQUENCE, deviceCacheBytes=10 * 8192)
    assert [finding.key for finding in found] == ["handler.deviceCacheBytes", "handler.maxRows"]
    assert "`maxRows: 10`" in found[1].cure


def test_growing_states_count_at_their_bound() -> None:
    """A slot has room for all of `max`."""
    growing = {"name": "keys", "shape": [-1, 64], "max": 1000, "datatype": "FP16"}
    found = _of_states(_SEQUENCE, states=[_HIDDEN, growing], deviceCacheBytes=100_000)
    assert "keys 1,000 x 64 x 2 bytes (FP16) = 136,192 bytes" in found[0].message


def test_raw_bodies_hold_their_places() -> None:
    """In the sequence profile a raw body cannot end its sequence, so with a long idle time few can begin."""
    raw = {"inputs": [{"name": "x", "shape": [1], "raw": "text"}]}
    assert _of_states(_SEQUENCE, **raw) == []
    [finding] = _of_states({**_SEQUENCE, "sequenceMaxIdleMSec": 1_800_000}, **raw)
    assert finding.key == "sequenceMaxIdleMSec"
    assert "no more than 128 sequences an hour" in finding.message
    assert _of_states({**_CONTINUOUS, "sequenceMaxIdleMSec": 1_800_000}, **raw) == []


def test_a_raw_output_alone_is_never_used() -> None:
    """An answer is raw only if the request was."""
    [finding] = _of_states(_SEQUENCE, outputs=[{"name": "y", "shape": [1], "raw": "text"}])
    assert finding.key == "handler.outputs"


def test_a_state_model_is_not_judged_by_keys_of_language_models() -> None:
    """Their defaults do not matter."""
    idle = {**_CONTINUOUS, "sequenceMaxIdleMSec": 5000}
    assert [finding.key for finding in _of_states(idle)] == ["handler.engineLingerSec"]
    assert "handler.reattachSec" in [finding.key for finding in _found(idle)]


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ({}, []),
        ({"deviceCacheBytes": 20 << 30}, []),
        ({"deviceCacheBytes": 1 << 30}, [("warning", "handler.deviceCacheBytes")]),
        ({"deviceCacheBytes": 1 << 30, "contextLength": 8192}, []),
        ({"contextLength": 200_000}, [("error", "handler.contextLength")]),
    ],
)
def test_bytes_of_a_language_model(
    handler: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """With its sizes, a device is compared with a full context."""
    found = check_config(load_config({**_CONTINUOUS, "handler": handler}), LLAMA_8B)
    assert [(finding.severity, finding.key) for finding in found] == expected


def test_a_context_that_does_not_fit_is_explained() -> None:
    """With the tokens that fit, the reason, and two remedies."""
    document = {**_CONTINUOUS, "handler": {"deviceCacheBytes": 1 << 30}}
    [finding] = check_config(load_config(document), LLAMA_8B)
    assert "hold 8,192 tokens of one session (32 layers x 8 KV heads" in finding.message
    assert "`contextLength: 8192`" in finding.cure
    assert str(131_072 * 131_072) in finding.cure


def test_the_summary_has_the_capacity() -> None:
    """Sessions and requests always, bytes with the sizes of the model."""
    config = load_config({**_CONTINUOUS, "handler": {"engines": 4, "deviceCacheBytes": 1 << 33}})
    lines = "\n".join(summary(config, LLAMA_8B))
    assert "256 sessions on 4 engines, up to 64 each" in lines
    assert "64 requests in flight and 1,000 that wait" in lines
    assert "a full context of 131,072 tokens takes 16 GiB" in lines
    assert "on a GPU: deviceCacheBytes hold 65,536 tokens of an engine's sessions, 1,024" in lines
    short = dataclasses.replace(LLAMA_8B, window=None)
    assert "a full context" not in "\n".join(summary(config, short))


@pytest.mark.parametrize(
    ("handler", "counted"),
    [
        ({}, [("on a CPU: 32 layers", "262,144"), ("on a GPU: 32 layers", "131,072")]),
        ({"device": "cpu"}, [("32 layers", "262,144")]),
        ({"device": "cuda:0"}, [("32 layers", "131,072")]),
        ({"dtype": "float16"}, [("32 layers", "131,072")]),
    ],
)
def test_bytes_are_those_of_the_device(
    handler: dict[str, Any], counted: list[tuple[str, str]]
) -> None:
    """If the configuration leaves the device open, both kinds are counted, as `plan` counts each."""
    lines = summary(load_config({**_CONTINUOUS, "handler": handler}), LLAMA_8B)
    found = [line.partition(" bytes a token")[0] for line in lines if "bytes a token" in line]
    assert [(line.partition(" x ")[0], line.rpartition(" ")[2]) for line in found] == counted


def test_the_summary_of_sequences_has_their_rate() -> None:
    """A sequence holds its place until its idle time has passed, which bounds their rate."""
    lines = "\n".join(summary(load_config({**_SEQUENCE, "handler": {**_STATES, "engines": 2}})))
    assert "at most 64 a minute can begin" in lines
    assert "x 32 sequences of an engine = 256 KiB" in lines
    slots = {**_STATES, "deviceCacheBytes": 8192 * 20}
    lines = "\n".join(summary(load_config({**_SEQUENCE, "handler": slots})))
    assert "20 of them stay on the device, the others move to host memory" in lines
    everywhere = {**_CONTINUOUS, "asyncCommunication": True, "continuousBatching": False}
    assert "requests can wait in a session" in summary(load_config(everywhere))[-1]
