"""The ratios of the benchmark and their targets.

The floor of a measure is the faster one of the two caches that stock users have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from benchmarks.model import IMAGE_TOKENS
from benchmarks.names import (
    ASGI,
    ASGI_BATCHES,
    ASGI_STREAMS,
    BARE,
    CACHES,
    DECODE,
    DRAFTED,
    DRAWN,
    ENGINE,
    FAMILIES,
    FIRST_OPEN,
    FORMED,
    FORMS,
    FRONT_CPU,
    FRONT_DECODE,
    FRONT_HOP,
    GROWTH_FIRST,
    GROWTH_MEMORY,
    GROWTH_OPEN,
    GROWTH_STEP,
    GRPC,
    HTTP,
    IMPLICIT,
    LLAMA,
    LLAMA_DECODE,
    LLAMA_PREFILL,
    LLAMA_TTFT,
    MANY,
    MEMORY,
    OPEN_STEP,
    PLAIN,
    PUBLISHED,
    RECOMPUTE,
    REPEATED_OPEN,
    SPEC_NEW,
    SPEC_REPEATING,
    STEPS,
    STREAMS,
    TEXT_ASGI,
    TEXT_HTTP,
    TTFT,
    TURNS,
    UNDRAFTED,
    UNGUESSED,
    VISION,
    VLLM,
    VLLM_DECODE,
    VLLM_PREFILL,
    VLLM_TTFT,
    floor_name,
    of_family,
)
from benchmarks.samples import Samples, slope

__all__ = ["RATIOS", "Ratio", "floor_of", "ratios_of"]


class Ratio(NamedTuple):
    """A ratio; `value` returns None where it was not measured, or raises ZeroDivisionError."""

    name: str
    bound: Literal["at most", "at least"]
    target: float
    meaning: str
    value: Callable[[Samples], float | None]

    def is_met(self, value: float) -> bool:
        """Return True if a value is on the right side of the target."""
        return value <= self.target if self.bound == "at most" else value >= self.target


def floor_of(samples: Samples, measure: str, x: int | None = None) -> float | None:
    """Return the median of the faster cache: the smaller time, or the higher throughput."""
    groups = [samples.of(measure, floor_name(cache), x) for cache in CACHES]
    medians = [samples.median(measure, floor_name(cache), x) for cache in CACHES]
    found = [median for median in medians if median is not None]
    if not found:
        return None
    is_rate = any(sample.unit == "tokens/s" for group in groups for sample in group)
    return max(found) if is_rate else min(found)


def ratios_of(samples: Samples) -> dict[str, float]:
    """Return all ratios that were measured, by name."""
    values = {ratio.name: ratio.value(samples) for ratio in RATIOS}
    return {name: round(value, 4) for name, value in values.items() if value is not None}


def _quotient(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None else over / under


def _over_floor(measure: str, system: str, x: int | None) -> Callable[[Samples], float | None]:
    return lambda s: _quotient(s.median(measure, system, x), floor_of(s, measure, x))


def _between(measure: str, x: int, over: str, under: str) -> Callable[[Samples], float | None]:
    return lambda s: _quotient(s.median(measure, over, x), s.median(measure, under, x))


def _slope_over_floor(samples: Samples) -> float | None:
    """Return the ratio of the steeper one of HTTP and gRPC."""
    histories = sorted({sample.x for sample in samples.of(TTFT, HTTP)})
    floor = _slope([(x, floor_of(samples, TTFT, x)) for x in histories])
    slopes = [_slope([(x, samples.median(TTFT, s, x)) for x in histories]) for s in (HTTP, GRPC)]
    found = [value for value in slopes if value is not None]
    return _quotient(max(found), floor) if found else None


def _slope(points: Sequence[tuple[int, float | None]]) -> float | None:
    known = [(x, y) for x, y in points if y is not None]
    return slope(known) if len(known) > 1 else None


def _idle_over_state(samples: Samples) -> float | None:
    lines = [
        _slope([(sample.x, sample.value) for sample in samples.of(MEMORY, system)])
        for system in ("engine", "state")
    ]
    return _quotient(*lines)


def _many_over_few(samples: Samples) -> float | None:
    sizes = sorted({sample.x for sample in samples.of(MANY, HTTP)})
    if len(sizes) < 2:
        return None
    few, *_, many = (samples.median(MANY, HTTP, size) for size in sizes)
    return _quotient(many, few)


def _growth(measure: str, few: int) -> Callable[[Samples], float | None]:
    return lambda s: _quotient(s.median(measure, ENGINE, 10_000), s.median(measure, ENGINE, few))


def _idle_kb(samples: Samples) -> float | None:
    """Return the KB that each of the sessions after the first 1,000 takes beyond its states."""
    few, many = (samples.median(GROWTH_MEMORY, ENGINE, num_open) for num_open in (1000, 10_000))
    return None if few is None or many is None else (many - few) / 9000 / 1000


def _frontend_share(samples: Samples) -> float | None:
    """Return the share of the time between two answers through TorchServe that the engine alone would not take."""
    of_engine = _between(STEPS, 128, STREAMS, ENGINE)(samples)
    return None if of_engine is None else 1 - of_engine


def _processor_time(system: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.median(FRONT_CPU, system, 16)


def _thousand_open(samples: Samples) -> float | None:
    costs = (samples.median(OPEN_STEP, ENGINE, num_open) for num_open in (1000, 128))
    return _quotient(*costs)


RATIOS: Sequence[Ratio] = (
    *(
        Ratio(
            f"ttft_1600_{system}_over_floor",
            "at most",
            1.35,
            f"time to first token over {system} after 1,600 tokens, over the bare prefill on a kept cache",
            _over_floor(TTFT, system, 1600),
        )
        for system in (HTTP, GRPC)
    ),
    Ratio(
        "ttft_slope_over_floor",
        "at most",
        1.2,
        "what a token of history adds to it (HTTP or gRPC, the steeper), over the floor's",
        _slope_over_floor,
    ),
    Ratio(
        "ttft_1600_speedup_over_recompute",
        "at least",
        20,
        "the baseline's time to first token after 1,600 tokens, over HTTP's",
        _between(TTFT, 1600, RECOMPUTE, HTTP),
    ),
    Ratio(
        "implicit_turn_over_explicit",
        "at most",
        1.25,
        "time to first token after 1,600 tokens of a client that sends all messages and no session, over HTTP's",
        _between(TTFT, 1600, IMPLICIT, HTTP),
    ),
    Ratio(
        "formed_step_16_over_plain",
        "at most",
        1.1,
        "milliseconds of a token of each of 16 rows with a JSON schema, over the same without, by the engine alone",
        _between(FORMS, 16, FORMED, PLAIN),
    ),
    Ratio(
        "drawn_step_16_over_plain",
        "at most",
        1.3,
        "milliseconds of a token of each of 16 rows at temperature 0.7 and top-p 0.9, over greedy ones, by the engine alone",
        _between(FORMS, 16, DRAWN, PLAIN),
    ),
    *(
        Ratio(
            f"decode_{width}_over_floor",
            "at least",
            0.85,
            f"throughput of {width} streams, over the bare batched step's",
            _over_floor(DECODE, HTTP, width),
        )
        for width in (1, 4, 8, 16, 32)
    ),
    *(
        Ratio(
            f"decode_16_over_floor_{family}",
            "at least",
            0.85,
            f"decode rate of 16 sessions of a {family} by the engine alone, over the bare batched step's",
            _over_floor(of_family(family), ENGINE, 16),
        )
        for family in FAMILIES
    ),
    *(
        Ratio(
            f"front_{name}_decode_{width}_over_engine",
            "at least",
            target,
            f"throughput of {width} streams through {words}, over the engine's alone",
            _between(FRONT_DECODE, width, system, ENGINE),
        )
        for system, name, words, target in (
            (ASGI, "asgi", "the front without TorchServe", 0.9),
            (HTTP, "torchserve", "TorchServe", 0.75),
        )
        for width in (1, 8, 16, 32)
    ),
    Ratio(
        "front_asgi_hop_ms",
        "at most",
        3,
        "milliseconds of one stream's first token that the front without TorchServe adds to the engine's",
        lambda samples: samples.median(FRONT_HOP, ASGI, 1),
    ),
    Ratio(
        "front_torchserve_hop_ms",
        "at most",
        6,
        "the same through TorchServe",
        lambda samples: samples.median(FRONT_HOP, HTTP, 1),
    ),
    *(
        Ratio(
            f"front_{name}_cpu_s_per_1000_pieces",
            "at most",
            target,
            f"seconds of processor time that {words} takes for 1,000 pieces of 16 streams",
            _processor_time(system),
        )
        for system, name, words, target in (
            (ASGI, "asgi", "the front without TorchServe", 0.5),
            (HTTP, "torchserve", "TorchServe", 2.0),
        )
    ),
    Ratio(
        "decode_16_speedup_over_recompute",
        "at least",
        5,
        "throughput of 16 turns, prompts included, over the baseline's",
        _between(TURNS, 16, HTTP, RECOMPUTE),
    ),
    *(
        Ratio(
            f"{prefix}open_{name}",
            "at most",
            1.15,
            f"opening with {image} through {words}, over {floor}",
            _over_floor(measure, system, None),
        )
        for system, prefix, words in (
            (HTTP, "", "TorchServe"),
            (ASGI, "front_asgi_", "the front without TorchServe"),
        )
        for measure, name, image, floor in (
            (FIRST_OPEN, "first_over_floor", "a new image", "vision tower and prefill"),
            (REPEATED_OPEN, "repeat_over_prefill", "an image that is in use", "prefill alone"),
        )
    ),
    Ratio(
        "vision_over_stock",
        "at most",
        0.7,
        "vision tower and projector for an image by the engine alone, over stock code's",
        _between(VISION, IMAGE_TOKENS, ENGINE, BARE),
    ),
    Ratio(
        "idle_bytes_over_state",
        "at most",
        1.05,
        "what an idle session adds to the engine's memory, over its KV states and embeddings",
        _idle_over_state,
    ),
    Ratio(
        "ttft_512_open_over_8_open",
        "at most",
        1.2,
        "time to first token of 8 prompts at once with 512 open sessions, over the same with 8",
        _many_over_few,
    ),
    *(
        Ratio(
            f"{name}_10000_open_over_{few}",
            "at most",
            1.2,
            f"very small text model, 10,000 open sessions: {text}, over that with {few:,}",
            _growth(measure, few),
        )
        for name, measure, few, text in (
            ("ttft", GROWTH_FIRST, 10, "time to first token"),
            ("step", GROWTH_STEP, 10, "a step"),
            ("open", GROWTH_OPEN, 1000, "an opening"),
        )
    ),
    Ratio(
        "idle_session_kb_beyond_states",
        "at most",
        8,
        "very small text model, 1,000 to 10,000 open sessions: KB of memory that each takes beyond its states",
        _idle_kb,
    ),
    *(
        Ratio(
            f"steps_{width}_engine_over_floor",
            "at least",
            target,
            f"recurrent model: steps of {width} sequences by the engine alone, over bare batched forward passes",
            _between(STEPS, width, ENGINE, BARE),
        )
        for width, target in ((1, 0.5), (8, 0.5), (32, 0.5), (128, 0.85))
    ),
    Ratio(
        "steps_128_speedup_over_published",
        "at least",
        1,
        "recurrent model: steps of 128 sequences through TorchServe, over those of the published pattern",
        _between(STEPS, 128, STREAMS, PUBLISHED),
    ),
    Ratio(
        "steps_128_asgi_over_torchserve",
        "at least",
        4,
        "recurrent model: steps of 128 sequences without TorchServe, over those through it",
        _between(STEPS, 128, ASGI_STREAMS, STREAMS),
    ),
    Ratio(
        "steps_128_batched_over_torchserve",
        "at least",
        1.5,
        "recurrent model: steps of 128 sequences without TorchServe, in one request, over those through it, in one each",
        _between(STEPS, 128, ASGI_BATCHES, STREAMS),
    ),
    Ratio(
        "steps_128_frontend_share",
        "at most",
        1,
        "recurrent model: the part of a step's time through TorchServe that the engine alone does not take (128 sequences)",
        _frontend_share,
    ),
    Ratio(
        "step_cost_1000_open_over_128",
        "at most",
        1.2,
        "recurrent model: what a step costs the engine with 1,000 open sequences, 8 of them active, over that with 128",
        _thousand_open,
    ),
    Ratio(
        "guessed_decode_1_over_plain",
        "at least",
        1.0,
        "decode rate of one stream with tokens guessed by weights in 8 bits, over the same without, by the engine alone",
        _between(FRONT_DECODE, 1, ENGINE, UNGUESSED),
    ),
    *(
        Ratio(
            f"spec_decode_1_over_plain_{name}",
            "at least",
            target,
            f"trained text model: decode rate of one stream, {words}, over the same without drafts, by the engine alone",
            _between(measure, 1, DRAFTED, UNDRAFTED),
        )
        for name, target, words, measure in (
            ("repeating", 1.4, "replies that repeat their history", SPEC_REPEATING),
            ("new", 0.98, "replies that do not", SPEC_NEW),
        )
    ),
    *(
        Ratio(
            f"{prefix}ttft_{history}_over_{name}",
            "at most",
            target,
            f"text model{through}: time to first token after {history:,} tokens, over {other}'s (below 1: ahead)",
            _between(measure, history, system, other),
        )
        for name, other, measure in (("llama", LLAMA, LLAMA_TTFT), ("vllm", VLLM, VLLM_TTFT))
        for prefix, through, system, target in (
            ("", "", TEXT_ASGI, 0.75),
            ("torchserve_", " through TorchServe", TEXT_HTTP, 1.0),
        )
        for history in (300, 800, 1600, 3200)
    ),
    *(
        Ratio(
            f"{prefix}prefill_1600_over_{name}",
            "at most",
            1,
            f"text model{through}: time to first token of a prompt of 1,600 tokens without a history, over {other}'s",
            _between(measure, 1600, system, other),
        )
        for name, other, measure in (("llama", LLAMA, LLAMA_PREFILL), ("vllm", VLLM, VLLM_PREFILL))
        for prefix, through, system in (
            ("", "", TEXT_ASGI),
            ("torchserve_", " through TorchServe", TEXT_HTTP),
        )
    ),
    *(
        Ratio(
            f"{prefix}decode_{width}_over_{name}",
            "at least",
            target,
            f"text model{through}: throughput of {width} streams, over {other}'s (above 1: ahead)",
            _between(measure, width, system, other),
        )
        for name, other, measure in (("llama", LLAMA, LLAMA_DECODE), ("vllm", VLLM, VLLM_DECODE))
        for prefix, through, system, target in (
            ("", "", TEXT_ASGI, 1.25),
            ("torchserve_", " through TorchServe", TEXT_HTTP, 1.0),
        )
        for width in (1, 8, 16, 32)
    ),
)
