"""What systems and measures are called in samples, ratios and plots."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ASYNC_GRPC",
    "ASYNC_HTTP",
    "CACHES",
    "DECODE",
    "FIRST_OPEN",
    "GRPC",
    "HTTP",
    "LLAMA",
    "LLAMA_DECODE",
    "LLAMA_TTFT",
    "MANY",
    "MEMORY",
    "PAUSE",
    "PROBE",
    "RECOMPUTE",
    "REPEATED_OPEN",
    "TEXT_HTTP",
    "TTFT",
    "TURNS",
    "floor_name",
]

# Systems.
HTTP: Final = "http"
GRPC: Final = "grpc"
ASYNC_HTTP: Final = "http, async"
ASYNC_GRPC: Final = "grpc, async"
RECOMPUTE: Final = "recompute"
TEXT_HTTP: Final = "http, text model"
LLAMA: Final = "llama.cpp"

# The caches that the floor is measured with.
CACHES: Final = ("dynamic", "static")

# Measures.
TTFT: Final = "ttft"
DECODE: Final = "decode"
TURNS: Final = "turns"
FIRST_OPEN: Final = "open, first"
REPEATED_OPEN: Final = "open, repeated"
MEMORY: Final = "memory"
MANY: Final = "many"
PAUSE: Final = "pause"
LLAMA_TTFT: Final = "llama ttft"
LLAMA_DECODE: Final = "llama decode"
PROBE: Final = "probe"  # of the machine itself


def floor_name(cache: str) -> str:
    """The name of the floor with one of the caches."""
    return f"floor, {cache}"
