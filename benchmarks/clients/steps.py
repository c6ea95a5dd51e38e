"""A cheap client of sequences over gRPC in the sequence profile, because it shares the cores."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import torch

from benchmarks.pace import Pace
from benchmarks.recurrent import FRAME, frames
from ts_stateful.pb.inference_pb2 import PredictionsRequest
from ts_stateful.pb.inference_pb2_grpc import InferenceAPIsServiceStub

__all__ = ["Batches", "Streams"]


class Batches:
    """Sequences of one model at `target`, whose steps go together in one request; a context manager that disconnects."""

    def __init__(self, target: str, model: str, session_ids: Sequence[str]) -> None:
        self._model = model
        self._steps = [
            {"session_id": session_id, "inputs": _inputs(frame)}
            for session_id, frame in zip(session_ids, frames(len(session_ids)), strict=True)
        ]
        self._channel = grpc.insecure_channel(target)
        stub = InferenceAPIsServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._predict = stub.Predictions

    def run(self, num_active: int, seconds: float) -> Pace:
        """Step the first sequences again and again, for so long, each time after all are answered."""
        document = {"type": "batch", "requests": self._steps[:num_active]}
        data = {"data": json.dumps(document).encode()}
        request = PredictionsRequest(model_name=self._model, input=data)
        latencies: list[float] = []
        begin = now = time.perf_counter()
        while now < begin + seconds:
            before = now
            answer = self._predict(request).prediction
            now = time.perf_counter()
            if answer.count(b'"outputs"') != num_active:
                raise RuntimeError(f"steps were rejected: {answer[:1000]!r}")
            latencies += num_active * [now - before]
        return Pace.of(latencies, now - begin)

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


class Streams:
    """`size` sequences of one model at `target`, a host and port; a context manager that ends the streams.

    Each sequence has one stream, all on one connection and in one thread. A stream ends only after its last answer, because
    TorchServe crashes otherwise.
    """

    def __init__(self, target: str, model: str, size: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._requests = [_request(model, frame) for frame in frames(size)]
        self._loop.run_until_complete(self._open(target))

    @property
    def session_ids(self) -> list[str]:
        """The ids of all sequences."""
        return [request.sequence_id for request in self._requests]

    def run(self, num_active: int, seconds: float) -> Pace:
        """Step the first sequences, each waiting for its answers, until the time is up and all are answered."""
        return self._loop.run_until_complete(self._run(num_active, seconds))

    async def _open(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target)
        stub = InferenceAPIsServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._calls = [stub.StreamPredictions2() for _ in self._requests]

    async def _run(self, num_active: int, seconds: float) -> Pace:
        latencies: list[float] = []
        begin = time.perf_counter()
        await asyncio.gather(
            *(
                _step(call, request, begin + seconds, latencies)
                for call, request in zip(
                    self._calls[:num_active], self._requests[:num_active], strict=True
                )
            )
        )
        return Pace.of(latencies, time.perf_counter() - begin)

    async def _close(self) -> None:
        for call in self._calls:
            await call.done_writing()
            await call.read()
        await self._channel.close()

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._close())
        self._loop.close()


def _request(model: str, frame: torch.Tensor) -> PredictionsRequest:
    step = {"inputs": _inputs(frame)}
    return PredictionsRequest(
        model_name=model,
        input={"data": json.dumps(step).encode()},
        sequence_id=secrets.token_hex(8),
    )


def _inputs(frame: torch.Tensor) -> list[dict[str, Any]]:
    return [{"name": FRAME, "data": frame.tolist()}]


async def _step(
    call: Any, request: PredictionsRequest, until: float, latencies: list[float]
) -> None:
    """Run steps of one sequence, at least one."""
    while True:
        begin = time.perf_counter()
        await call.write(request)
        answer = await call.read()
        while (
            not answer.prediction and not answer.status.code
        ):  # an empty message keeps a call alive
            answer = await call.read()
        now = time.perf_counter()
        if b'"outputs"' not in answer.prediction:
            raise RuntimeError(f"a step was rejected:{answer}")
        latencies.append(now - begin)
        if now >= until:
            return
