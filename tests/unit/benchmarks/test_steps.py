"""The benchmark of steps: its model, its baseline, its client, and its statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import torch
from torch import Tensor

from benchmarks import recurrent
from benchmarks.bare_steps import BareSteps
from benchmarks.clients.steps import Streams
from benchmarks.own_process import OwnProcess
from benchmarks.pace import Pace
from benchmarks.plots import draw
from benchmarks.published_handler import PublishedHandler
from benchmarks.samples import Sample, Samples
from ts_stateful.pb.inference_pb2 import PredictionResponse, PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import (
    InferenceAPIsServiceServicer,
    add_InferenceAPIsServiceServicer_to_server,
)

# Its recurrent model is a TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recurrent model."""
    return recurrent.build(tmp_path_factory.mktemp("model"))


def test_a_pace_is_steps_a_second_and_latencies() -> None:
    """The percentile is a latency that was measured."""
    assert Pace.of([number / 1000 for number in range(1, 201)], 2.0) == (100.0, 100.5, 198.0)
    assert Pace.of([0.5], 1.0) == (1.0, 500.0, 500.0)


def test_the_recurrent_model_has_a_million_parameters(model: Path, tmp_path: Path) -> None:
    """And the same ones in every run."""
    weights = list(recurrent.load(model).parameters())
    assert 1_000_000 < sum(weight.numel() for weight in weights) < 1_100_000
    again = recurrent.load(recurrent.build(tmp_path)).parameters()
    assert all(torch.equal(x, y) for x, y in zip(weights, again, strict=True))


def test_steps_are_taken_without_a_server(model: Path) -> None:
    """By an engine of which some sequences are active, and by bare passes."""
    with torch.random.fork_rng():
        bare = BareSteps(model)
    for pace in (bare.engine(3, 2, 0), bare.engine(2, 2, 0), bare.floor(2, 0)):
        assert 0 < pace.median_ms <= pace.p99_ms
        assert pace.steps_per_s > 0


class Adder:
    """An object for another process."""

    def __init__(self, first: int) -> None:
        self._first = first

    def plus(self, second: int) -> int:
        """The sum."""
        return self._first + second


def test_an_object_can_be_in_a_process_of_its_own() -> None:
    """Its methods answer here."""
    with OwnProcess(Adder, 40) as process:
        assert process.measure("plus", 2) == 42


def _batch(handler: PublishedHandler, steps: dict[str, Tensor]) -> list[Tensor]:
    """Return the scores of a batch of steps, by the id of their sequence."""
    ids = list(steps)
    context = SimpleNamespace(get_sequence_id=lambda index: ids[index])
    data = [
        {"data": json.dumps({"inputs": [{"name": "frame", "data": frame.tolist()}]}).encode()}
        for frame in steps.values()
    ]
    answers = [json.loads(answer) for answer in handler.handle(data, context)]
    assert [answer["session_id"] for answer in answers] == ids
    return [torch.tensor(answer["outputs"][0]["data"]) for answer in answers]


def test_the_published_pattern_keeps_states_by_sequence(model: Path) -> None:
    """As many as there is room for: the least recently used one begins again."""
    handler = PublishedHandler()
    handler.initialize(
        SimpleNamespace(
            model_yaml_config={"maxNumSequence": 2, "handler": recurrent.HANDLER},
            system_properties={"model_dir": str(model)},
        )
    )
    x, y, z = recurrent.frames(3)
    first = _batch(handler, {"a": x, "b": y})
    second = _batch(handler, {"b": x, "a": y})
    with torch.inference_mode():
        module, states = recurrent.load(model), recurrent.initial(2)
        for frames, found in ((torch.stack([x, y]), first), (torch.stack([y, x]), second[::-1])):
            scores, *states = module(frames, *states)
            assert torch.allclose(scores, torch.stack(found), atol=1e-5)
    _batch(handler, {"c": z})
    assert torch.equal(_batch(handler, {"b": y})[0], first[1])


class _Echo(InferenceAPIsServiceServicer):
    """A server that answers every step after an empty message."""

    def __init__(self, answer: bytes) -> None:
        self.ids: list[str] = []
        self._answer = answer

    def StreamPredictions2(
        self, requests: Iterator[PredictionsRequest], _context: Any
    ) -> Iterator[PredictionResponse]:
        for request in requests:
            self.ids.append(request.sequence_id)
            yield PredictionResponse()
            yield PredictionResponse(prediction=self._answer)


@pytest.fixture
def echo(request: pytest.FixtureRequest) -> Iterator[tuple[_Echo, str]]:
    """Start a server of `_Echo`; yield its address."""
    servicer = _Echo(request.param)
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    add_InferenceAPIsServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize("echo", [b'{"outputs": []}'], indirect=True)
def test_every_sequence_has_a_stream(echo: tuple[_Echo, str]) -> None:
    """The active ones send at least one step each, and wait for its answer."""
    servicer, target = echo
    with Streams(target, "steps", 3) as streams:
        assert streams.run(2, 0).steps_per_s > 0
        assert len(set(servicer.ids)) == len(servicer.ids) == 2
        streams.run(3, 0)
    assert len(set(servicer.ids)) == 3


@pytest.mark.parametrize("echo", [b'{"error": {}}'], indirect=True)
def test_a_refused_step_is_no_measurement(echo: tuple[_Echo, str]) -> None:
    """The error has the server's answer."""
    with Streams(echo[1], "steps", 1) as streams, pytest.raises(RuntimeError, match="error"):
        streams.run(1, 0)


def test_steps_are_drawn(tmp_path: Path) -> None:
    """A line for each system, on logarithmic axes."""
    systems = ("engine alone", "bare forward", "grpc, sequence profile", "published pattern")
    samples = [
        Sample("steps", system, width, 100.0 * width * (number + 1), "steps/s")
        for number, system in enumerate(systems)
        for width in (1, 8, 128)
    ]
    assert draw(Samples(samples), tmp_path, "a machine") == [tmp_path / "steps.png"]
