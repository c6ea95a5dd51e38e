"""Statistics of measured numbers: spread, order, ratios."""

from __future__ import annotations

import io
import itertools
import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.clients.conversation import Turn
from benchmarks.names import FAMILIES, of_family
from benchmarks.plan import QUICK
from benchmarks.progress import Progress
from benchmarks.rates import steady_rate, whole_rate
from benchmarks.ratios import RATIOS, floor_of, ratios_of
from benchmarks.report import ratio_table, write_report, write_results
from benchmarks.samples import Sample, Samples, Trial, interleave, settle, slope, spread_of


def _turn(*arrivals: tuple[float, str]) -> Turn:
    return Turn.of(0.0, arrivals)


def _interleaved(rounds: int, *, at_least: int = 1, times: tuple[float, ...] = ()) -> str:
    """Return the order in which trials `a`, `b` and `c` run while the clock shows `times`; none begin after 1 s."""
    ran: list[str] = []

    def run(name: str) -> list[Sample]:
        ran.append(name)
        return []

    clock = itertools.chain(times, itertools.repeat(0.0))
    interleave(
        [Trial(name, partial(run, name)) for name in "abc"],
        Samples(),
        Progress(1, io.StringIO()),
        rounds=rounds,
        at_least=at_least,
        until=1.0,
        clock=lambda: next(clock),
        before=list,
    )
    return "".join(ran)


def test_every_round_begins_with_another_trial() -> None:
    """No trial always follows the same one."""
    assert _interleaved(3) == "abcbcacab"


def test_a_trial_may_be_due_less_often() -> None:
    """A slow trial does not run in every round."""
    ran: list[int] = []

    def run(number: int) -> list[Sample]:
        ran.append(number)
        return []

    trials = [Trial("often", partial(run, 1)), Trial("seldom", partial(run, 2), every=2)]
    interleave(
        trials,
        Samples(),
        Progress(1, io.StringIO()),
        rounds=3,
        at_least=3,
        until=0.0,
        before=list,
    )
    assert ran == [1, 2, 1, 1, 2]


def test_no_round_begins_when_the_time_is_up() -> None:
    """But the minimum number of rounds runs."""
    assert _interleaved(5, times=(2.0,)) == "abc"
    assert _interleaved(5, at_least=2, times=(2.0,)) == "abcbca"


def test_the_spread_is_median_and_deciles() -> None:
    """With linear interpolation."""
    assert spread_of([float(number) for number in range(11)]) == (5.0, 1.0, 9.0, 11)
    assert spread_of([3.0]) == (3.0, 3.0, 3.0, 1)


def test_the_slope_is_that_of_least_squares() -> None:
    """In units of y by x."""
    assert slope([(0, 1), (10, 6), (20, 11)]) == pytest.approx(0.5)


def test_steady_throughput_counts_while_all_streams_run() -> None:
    """Tokens before the last stream's beginning, or after the first one's end, do not count."""
    early = _turn((1.0, "a"), (2.0, "b"), (3.0, "c"), (4.0, "d"))
    late = _turn((2.0, "a b"), (3.0, "c"), (4.0, "d"), (5.0, "e"))
    assert steady_rate([early, late]) == pytest.approx(2.0)
    with pytest.raises(RuntimeError, match="same time"):
        steady_rate([early, _turn((7.0, "a"), (8.0, "b"))])


def test_whole_throughput_counts_from_the_prompt_on() -> None:
    """Up to the end of the last reply."""
    turns = [_turn((1.0, "a"), (2.0, "b")), _turn((3.0, "a"), (4.0, "b"))]
    assert whole_rate(turns) == pytest.approx(1.0)


def test_the_floor_is_the_faster_cache() -> None:
    """The smaller time, but the higher throughput."""
    samples = Samples(
        [
            Sample("ttft", "floor, dynamic", 300, 20.0, "ms"),
            Sample("ttft", "floor, static", 300, 30.0, "ms"),
            Sample("decode", "floor, dynamic", 8, 20.0, "tokens/s"),
            Sample("decode", "floor, static", 8, 30.0, "tokens/s"),
        ]
    )
    assert floor_of(samples, "ttft", 300) == 20.0
    assert floor_of(samples, "decode", 8) == 30.0
    assert floor_of(samples, "decode", 16) is None


def _one_of_each() -> Samples:
    """Return samples for every ratio: the measured systems take twice the floor's time and are half as fast."""
    systems = {
        "http": 2.0,
        "http, all messages": 2.2,
        "grpc": 2.0,
        "recompute": 40.0,
        "floor, dynamic": 1.0,
    }
    made = [
        Sample("ttft", system, x, factor * (10 + x / 100), "ms")
        for system, factor in systems.items()
        for x in (300, 800, 1600, 3200)
    ]
    for width in (1, 4, 8, 16, 32):
        made.append(Sample("decode", "http", width, 50.0, "tokens/s"))
        made.append(Sample("decode", "floor, static", width, 100.0, "tokens/s"))
    made += [
        *(Sample(of_family(family), "engine alone", 16, 150.0, "tokens/s") for family in FAMILIES),
        *(Sample(of_family(family), "floor, static", 16, 100.0, "tokens/s") for family in FAMILIES),
        Sample("step, with forms", "engine alone, free replies", 16, 20.0, "ms"),
        Sample("step, with forms", "engine alone, a JSON schema for each reply", 16, 21.0, "ms"),
        Sample("step, with forms", "engine alone, sampled replies", 16, 24.0, "ms"),
        Sample("drafts, repeating", "engine alone, drafts", 1, 300.0, "tokens/s"),
        Sample("drafts, repeating", "engine alone, no drafts", 1, 100.0, "tokens/s"),
        Sample("drafts, new", "engine alone, drafts", 1, 99.0, "tokens/s"),
        Sample("drafts, new", "engine alone, no drafts", 1, 100.0, "tokens/s"),
        Sample("front, decode", "engine alone, no guesses", 1, 80.0, "tokens/s"),
        Sample("turns", "http", 16, 50.0, "tokens/s"),
        Sample("turns", "recompute", 16, 5.0, "tokens/s"),
    ]
    for system, rate in (
        ("http", 70.0),
        ("http, without TorchServe", 95.0),
        ("engine alone", 100.0),
    ):
        made += [Sample("front, decode", system, x, rate, "tokens/s") for x in (1, 8, 16, 32)]
        made.append(Sample("front, hop", system, 1, 2.0, "ms"))
        made.append(Sample("front, processor time", system, 16, 0.2, "s"))
    for measure in ("open, first", "open, repeated"):
        made.append(Sample(measure, "http", 258, 30.0, "ms"))
        made.append(Sample(measure, "http, without TorchServe", 258, 22.5, "ms"))
        made.append(Sample(measure, "floor, dynamic", 258, 15.0, "ms"))
    made.append(Sample("vision tower", "engine alone", 256, 30.0, "ms"))
    made.append(Sample("vision tower", "bare forward", 256, 60.0, "ms"))
    for number in (16, 24, 32):
        made.append(Sample("memory", "engine", number, 1000.0 + 11 * number, "bytes"))
        made.append(Sample("memory", "state", number, 10.0 * number, "bytes"))
    made += [Sample("many", "http", 8, 10.0, "ms"), Sample("many", "http", 512, 12.0, "ms")]
    for measure in ("first token", "step", "opening"):
        made += [
            Sample(f"growth, {measure}", "engine alone", number, 1.0 + number / 100_000, "ms")
            for number in (10, 1000, 10_000)
        ]
    for number in (1000, 10_000):
        made.append(Sample("growth, memory", "engine alone", number, 6000.0 * number, "bytes"))
    rates = {
        "engine alone": 80.0,
        "bare forward": 100.0,
        "grpc, sequence profile": 20.0,
        "grpc, without TorchServe": 60.0,
        "grpc, without TorchServe, a batch for all": 80.0,
        "published pattern": 5.0,
    }
    for system, rate in rates.items():
        made += [Sample("steps", system, width, rate, "steps/s") for width in (1, 8, 32, 128)]
    for number, cost in ((8, 20.0), (128, 20.0), (1000, 22.0)):
        made.append(Sample("step, by open sequences", "engine alone", number, cost, "us"))
    fronts = {"http, text model, without TorchServe": 1.0, "http, text model": 1.5}
    for name, other in (("llama", "llama.cpp"), ("vllm", "vLLM")):
        for system, factor in {**fronts, other: 2.0}.items():
            made.append(Sample(f"{name} prefill", system, 1600, factor, "ms"))
            made += [
                Sample(f"{name} ttft", system, x, factor, "ms") for x in (300, 800, 1600, 3200)
            ]
            made += [
                Sample(f"{name} decode", system, x, factor, "tokens/s") for x in (1, 8, 16, 32)
            ]
    return Samples(made)


def test_every_ratio_is_made_of_medians() -> None:
    """And none is left out."""
    ratios = ratios_of(_one_of_each())
    assert list(ratios) == [ratio.name for ratio in RATIOS]
    assert ratios["ttft_1600_http_over_floor"] == ratios["ttft_1600_grpc_over_floor"] == 2
    assert ratios["ttft_slope_over_floor"] == pytest.approx(2)
    assert ratios["ttft_1600_speedup_over_recompute"] == 20
    assert ratios["decode_16_over_floor"] == 0.5
    assert ratios["decode_16_over_floor_qwen3_moe"] == 1.5
    assert ratios["front_asgi_decode_16_over_engine"] == pytest.approx(0.95)
    assert ratios["front_torchserve_decode_8_over_engine"] == pytest.approx(0.7)
    assert ratios["front_asgi_hop_ms"] == 2.0
    assert ratios["front_torchserve_cpu_s_per_1000_pieces"] == 0.2
    assert ratios["decode_16_speedup_over_recompute"] == 10
    assert ratios["open_first_over_floor"] == ratios["open_repeat_over_prefill"] == 2
    assert ratios["front_asgi_open_first_over_floor"] == 1.5
    assert ratios["front_asgi_open_repeat_over_prefill"] == 1.5
    assert ratios["drawn_step_16_over_plain"] == 1.2
    assert ratios["vision_over_stock"] == 0.5
    assert ratios["idle_bytes_over_state"] == pytest.approx(1.1)
    assert ratios["ttft_512_open_over_8_open"] == pytest.approx(1.2)
    assert ratios["ttft_10000_open_over_10"] == pytest.approx(1.1, rel=1e-3)
    assert ratios["open_10000_open_over_1000"] == pytest.approx(1.1 / 1.01, rel=1e-3)
    assert ratios["idle_session_kb_beyond_states"] == pytest.approx(6.0)
    assert ratios["steps_1_engine_over_floor"] == ratios["steps_128_engine_over_floor"] == 0.8
    assert ratios["steps_128_speedup_over_published"] == 4
    assert ratios["steps_128_asgi_over_torchserve"] == 3
    assert ratios["steps_128_batched_over_torchserve"] == 4
    assert ratios["steps_128_frontend_share"] == 0.75
    assert ratios["step_cost_1000_open_over_128"] == pytest.approx(1.1)
    assert ratios["spec_decode_1_over_plain_repeating"] == 3
    assert ratios["spec_decode_1_over_plain_new"] == pytest.approx(0.99)
    assert ratios["guessed_decode_1_over_plain"] == 1.25
    assert ratios["ttft_1600_over_llama"] == ratios["decode_16_over_llama"] == 0.5
    assert ratios["torchserve_ttft_300_over_llama"] == 0.75
    assert ratios["prefill_1600_over_vllm"] == 0.5
    assert ratios["torchserve_decode_32_over_vllm"] == 0.75


def test_what_was_not_measured_has_no_ratio() -> None:
    """A run of some stages gives their ratios alone."""
    assert ratios_of(Samples()) == {}
    some = Samples(sample for sample in _one_of_each().all if sample.measure == "many")
    assert list(ratios_of(some)) == ["ttft_512_open_over_8_open"]


def test_the_table_shows_if_a_target_is_met() -> None:
    """With the side on which it lies."""
    table = ratio_table({"ttft_1600_http_over_floor": 1.3, "decode_16_over_floor": 0.5})
    assert "| 1.30 | at most 1.35, met |" in table
    assert "| 0.50 | at least 0.85, **missed** |" in table


def test_results_hold_everything(tmp_path: Path) -> None:
    """Ratios, medians, and all raw samples beside them."""
    machine = {
        "date": "2026-01-01T00:00:00+00:00",
        "cpu": "a processor",
        "cores": 2,
        "cores_of_machine": 4,
        "threads": 2,
        "memory_gib": 8,
        "text_dtypes": {"weights": "bfloat16", "computed": "float32"},
        "other_load": 0.5,
        "commit": "abc",
        "python": "3.11",
        "java": "17",
        "versions": {"torch": "2.13"},
    }
    samples = _one_of_each()
    samples.add(settle())
    write_results(tmp_path / "results.json", machine, QUICK, samples)
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["machine"] == machine
    assert document["ratios"] == ratios_of(samples)
    assert len(document["samples"]) == len(samples.all)
    assert document["samples"][0] == {
        "measure": "ttft", "system": "http", "x": 300, "value": 26.0, "unit": "ms",
    }  # fmt: skip
    assert {"measure", "system", "x", "unit", "median", "low", "high", "size"} == set(
        document["medians"][0]
    )
    write_report(tmp_path / "report.md", machine, samples, [tmp_path / "ttft.png"], quick=True)
    page = (tmp_path / "report.md").read_text()
    assert "Other processes took 50%" in page
    assert "A fixed piece of work" in page
    assert "![ttft](ttft.png)" in page
    assert "| http | 26.0 ms | 36.0 ms | 52.0 ms | 84.0 ms |" in page
