"""Names of systems and measures in samples, ratios and plots."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ASGI",
    "ASGI_BATCHES",
    "ASGI_STREAMS",
    "ASYNC_GRPC",
    "ASYNC_HTTP",
    "BARE",
    "CACHES",
    "DECODE",
    "DRAFTED",
    "DRAWN",
    "ENGINE",
    "FAMILIES",
    "FIRST_OPEN",
    "FORMED",
    "FORMS",
    "FRONT_CPU",
    "FRONT_DECODE",
    "FRONT_HOP",
    "GRPC",
    "HTTP",
    "IMPLICIT",
    "LLAMA",
    "LLAMA_DECODE",
    "LLAMA_DRAFTS",
    "LLAMA_PREFILL",
    "LLAMA_TTFT",
    "MANY",
    "MEMORY",
    "OPEN_STEP",
    "PAUSE",
    "PLAIN",
    "PROBE",
    "PUBLISHED",
    "RECOMPUTE",
    "REPEATED_OPEN",
    "SPEC_NEW",
    "SPEC_REPEATING",
    "SPEC_RIGHT",
    "STEPS",
    "STEP_MEDIAN",
    "STEP_P99",
    "STREAMS",
    "TEXT_ASGI",
    "TEXT_HTTP",
    "TTFT",
    "TURNS",
    "UNDRAFTED",
    "UNGUESSED",
    "VISION",
    "VLLM",
    "VLLM_DECODE",
    "VLLM_PREFILL",
    "VLLM_TTFT",
    "floor_name",
    "of_family",
]

# Systems.
HTTP: Final = "http"
GRPC: Final = "grpc"
IMPLICIT: Final = "http, all messages"
ASGI: Final = "http, without TorchServe"
ASYNC_HTTP: Final = "http, async"
ASYNC_GRPC: Final = "grpc, async"
RECOMPUTE: Final = "recompute"
TEXT_HTTP: Final = "http, text model"
TEXT_ASGI: Final = "http, text model, without TorchServe"
LLAMA: Final = "llama.cpp"
VLLM: Final = "vLLM"
ENGINE: Final = "engine alone"
BARE: Final = "bare forward"
STREAMS: Final = "grpc, sequence profile"
ASGI_STREAMS: Final = "grpc, without TorchServe"
ASGI_BATCHES: Final = "grpc, without TorchServe, a batch for all"
PUBLISHED: Final = "published pattern"
PLAIN: Final = "engine alone, free replies"
DRAFTED: Final = "engine alone, drafts"
UNDRAFTED: Final = "engine alone, no drafts"
UNGUESSED: Final = "engine alone, no guesses"
LLAMA_DRAFTS: Final = "llama.cpp, ngram-simple"
FORMED: Final = "engine alone, a JSON schema for each reply"
DRAWN: Final = "engine alone, sampled replies"

# The caches that the floor is measured with.
CACHES: Final = ("dynamic", "static")

# Measures.
TTFT: Final = "ttft"
DECODE: Final = "decode"
TURNS: Final = "turns"
FIRST_OPEN: Final = "open, first"
REPEATED_OPEN: Final = "open, repeated"
VISION: Final = "vision tower"
MEMORY: Final = "memory"
MANY: Final = "many"
GROWTH_FIRST: Final = "growth, first token"
GROWTH_STEP: Final = "growth, step"
GROWTH_OPEN: Final = "growth, opening"
GROWTH_MEMORY: Final = "growth, memory"
PAUSE: Final = "pause"
SPEC_REPEATING: Final = "drafts, repeating"
SPEC_NEW: Final = "drafts, new"
SPEC_RIGHT: Final = "drafts, right"
FORMS: Final = "step, with forms"
LLAMA_TTFT: Final = "llama ttft"
LLAMA_DECODE: Final = "llama decode"
LLAMA_PREFILL: Final = "llama prefill"
VLLM_TTFT: Final = "vllm ttft"
VLLM_DECODE: Final = "vllm decode"
VLLM_PREFILL: Final = "vllm prefill"
STEPS: Final = "steps"
STEP_MEDIAN: Final = "step, median"
STEP_P99: Final = "step, 99th percentile"
OPEN_STEP: Final = "step, by open sequences"
FRONT_DECODE: Final = "front, decode"
FRONT_HOP: Final = "front, hop"
FRONT_CPU: Final = "front, processor time"
PROBE: Final = "probe"  # of the machine itself

# Text models of the stage `families`.
FAMILIES: Final = (
    *("gemma3", "glm4", "granite", "llama", "mistral", "mixtral", "olmo2", "olmo3", "olmoe"),
    *("phi3", "qwen2", "qwen2_5_vl", "qwen2_vl", "qwen3", "qwen3_moe", "qwen3_vl"),
)


def floor_name(cache: str) -> str:
    """Return the name of the floor with one of the caches."""
    return f"floor, {cache}"


def of_family(family: str) -> str:
    """Return the measure of a family's decode rate."""
    return f"decode, {family}"
