"""The amount of measurement: histories and widths, repetitions, and time."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from benchmarks.names import FAMILIES

__all__ = ["FULL", "PROMPT_TOKENS", "QUICK", "Plan"]

PROMPT_TOKENS: Final = 20  # of the prompt whose first token is measured, template included


class Plan(Struct, frozen=True, kw_only=True):
    """A plan. Times are seconds after which a stage begins nothing more, once it has `at_least` rounds.

    Time to first token is measured in `batches` of new conversations, each with `asks` prompts. So their histories stay close
    to their nominal lengths.
    """

    histories: tuple[int, ...] = (300, 800, 1600, 3200)
    batches: int = 4
    asks: int = 4
    ttft_s: float = 110.0

    widths: tuple[int, ...] = (1, 4, 8, 16, 32)
    decode_history: int = 500
    decode_tokens: int = 64
    recompute_widths: tuple[int, ...] = (1, 16)
    decode_rounds: int = 4
    decode_s: float = 110.0

    front_widths: tuple[int, ...] = (1, 8, 16, 32)
    front_tokens: int = 150  # long enough that all streams run together for most of it
    front_rounds: int = 6
    front_s: float = 210.0

    open_rounds: int = 12

    idle_sessions: int = 64
    idle_first: int = 16  # at the first reading: the first sessions have additional cost
    idle_step: int = 8
    idle_history: int = 500

    many_sessions: int = 512
    many_active: int = 8
    many_history: int = 300
    many_idle_history: int = 64
    many_rounds: int = 6

    growth_open: tuple[int, ...] = (10, 100, 1000, 3000, 10_000)
    growth_asks: int = 40
    growth_rounds: int = 6

    pause_prompt: int = 2000
    pause_rounds: int = 3

    spec_rounds: int = 8
    spec_s: float = 60.0

    form_width: int = 16
    form_steps: int = 100
    form_rounds: int = 6

    families: tuple[str, ...] = tuple(FAMILIES)
    family_rounds: int = 4
    family_steps: int = 12
    family_history: int = 300

    step_widths: tuple[int, ...] = (1, 8, 32, 128)
    step_open: tuple[int, ...] = (8, 128, 1000)
    step_active: int = 8  # of those sequences
    step_bare_s: float = 0.25  # duration of one sample: of the engine alone and of bare passes,
    step_s: float = 0.8  # and through TorchServe
    step_warm_s: float = 4.0
    step_rounds: int = 5
    steps_s: float = 50.0

    beside_widths: tuple[int, ...] = (1, 8, 16, 32)
    beside_prompts: tuple[int, ...] = (1600,)
    beside_turns: int = 4  # samples of one stream in a round: they are short, and differ by half
    beside_rounds: int = 4
    same_prompts: int = 16
    beside_s: float = 160.0

    at_least: int = 2


FULL: Final = Plan()
QUICK: Final = Plan(
    histories=(300, 1600),
    batches=1,
    asks=2,
    widths=(1, 8),
    recompute_widths=(1,),
    decode_rounds=1,
    decode_tokens=16,
    front_widths=(1, 8),
    front_rounds=1,
    front_tokens=80,
    open_rounds=3,
    idle_sessions=16,
    idle_first=8,
    many_sessions=64,
    many_rounds=2,
    growth_open=(10, 100, 1000),
    growth_asks=10,
    growth_rounds=2,
    pause_rounds=1,
    spec_rounds=1,
    form_steps=20,
    form_rounds=1,
    families=("mixtral", "qwen2_vl"),
    family_rounds=1,
    family_steps=5,
    family_history=100,
    step_widths=(1, 128),
    step_bare_s=0.05,
    step_s=0.3,
    step_warm_s=0.5,
    step_rounds=1,
    beside_widths=(1, 8),
    beside_turns=1,
    beside_rounds=1,
    at_least=1,
)
