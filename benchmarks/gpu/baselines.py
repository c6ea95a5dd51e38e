"""Baselines on a GPU: the memory's speed, `generate`, and `transformers`' continuous batching.

They run the text part alone on the same weights. Histories are words and all rows have the same length, which suits these best.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    LlamaForCausalLM,
)

from benchmarks.inputs import Inputs
from ts_stateful.language.network.layout import cache_name

__all__ = [
    "bare_pass_ms",
    "continuous_decode_ms",
    "copy_bandwidth",
    "generate_decode_ms",
    "generate_first_ms",
]

_WARM_UP = 4  # steps


def copy_bandwidth(num_bytes: int, device: torch.device) -> float:
    """Return the bytes a second that a copy within the device's memory reads and writes, the best of several."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [_timed_s(lambda: target.copy_(source), device) for _ in range(10)]
    return 2 * num_bytes / min(times[1:])


def generate_decode_ms(network: LlamaForCausalLM, rows: int, history: int, steps: int) -> float:
    """Return the mean time of a step of `generate`; prompts are computed before the clock starts."""
    ids = torch.tensor([_history(history) for _ in range(rows)], device=network.device)
    times: list[float] = []

    def note(*_: Any) -> Tensor:
        times.append(time.perf_counter())
        return torch.zeros(rows, dtype=torch.bool, device=network.device)

    _generate(network, ids, 1 + _WARM_UP + steps, stopping_criteria=[note])
    _wait(network.device)
    times[-1] = time.perf_counter()  # the host may be ahead of the device
    return 1000 * (times[-1] - times[_WARM_UP]) / (len(times) - 1 - _WARM_UP)


def bare_pass_ms(network: LlamaForCausalLM, history: int, num_new: int) -> float:
    """Return the time of the stock network's pass over new tokens after a history whose states it has, to the next token."""
    cache = DynamicCache(config=network.config)
    past = {cache_name(network): cache}
    ids = torch.tensor([_history(history + num_new)], device=network.device)

    def work(some: Tensor) -> None:
        with torch.inference_mode():
            output = network(some, use_cache=True, logits_to_keep=1, **past)
            output.logits.argmax().item()

    work(ids[:, :history])
    work(ids[:, history:])  # warms up
    cache.crop(-num_new)
    return 1000 * _timed_s(lambda: work(ids[:, history:]), network.device)


def generate_first_ms(network: LlamaForCausalLM, num_tokens: int) -> float:
    """Return the time from a whole transcript to the next token, keeping nothing."""
    ids = torch.tensor([_history(num_tokens)], device=network.device)
    return 1000 * _timed_s(lambda: _generate(network, ids, 1), network.device)


def continuous_decode_ms(network: LlamaForCausalLM, rows: int, history: int, steps: int) -> float:
    """Return the time of a step of continuous batching while all rows decode.

    That is from the beginning of the last row to the end of the first one.
    """
    config = GenerationConfig(
        max_new_tokens=2 * _WARM_UP + steps, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    # Without a GPU the library would take most of the host's memory for its cache.
    limits = ContinuousBatchingConfig(
        max_memory_percent=None if network.device.type == "cuda" else 0.05
    )
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)
    outputs = network.generate_batch(
        [_history(history) for _ in range(rows)],
        generation_config=config,
        continuous_batching_config=limits,
        record_timestamps=True,
    )
    stamps = [output.timestamps for output in outputs.values()]
    begin, end = max(times[_WARM_UP] for times in stamps), min(times[-1] for times in stamps)
    num_tokens = sum(begin < at <= end for times in stamps for at in times)
    step_s: float = (end - begin) * rows / num_tokens
    return 1000 * step_s


def _history(num_tokens: int) -> list[int]:
    return (Inputs().prompt(num_tokens + 4))[:num_tokens]


def _generate(network: LlamaForCausalLM, ids: Tensor, num_new: int, **options: Any) -> Tensor:
    made: Tensor = network.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        min_new_tokens=num_new,
        max_new_tokens=num_new,
        do_sample=False,
        **options,
    )
    return made


def _timed_s(work: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    begin = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
