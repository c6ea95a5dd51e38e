"""The comparison with vLLM's server for CPUs."""

from __future__ import annotations

from benchmarks.names import VLLM, VLLM_DECODE, VLLM_PREFILL, VLLM_TTFT
from benchmarks.rig import Rig
from benchmarks.stages.beside import OURS, compare_replies, run_beside

__all__ = ["TITLE", "run"]

TITLE = "beside vLLM"


def run(rig: Rig) -> None:
    """Sample `vllm ttft`, `vllm prefill` and `vllm decode`.

    Raises:
        RuntimeError: vLLM computes another model.
    """
    rig.start(OURS)
    compare_replies(rig, rig.connect(VLLM), VLLM)
    run_beside(rig, VLLM, VLLM_TTFT, VLLM_PREFILL, VLLM_DECODE)
