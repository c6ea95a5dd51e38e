"""The comparison with llama.cpp."""

from __future__ import annotations

from benchmarks.clients.llama import LlamaClient
from benchmarks.names import LLAMA, LLAMA_DECODE, LLAMA_PREFILL, LLAMA_TTFT
from benchmarks.rig import Rig
from benchmarks.stages.beside import OURS, compare_replies, run_beside

__all__ = ["TITLE", "run"]

TITLE = "beside llama.cpp"


def run(rig: Rig) -> None:
    """Sample `llama ttft`, `llama prefill` and `llama decode`.

    Raises:
        RuntimeError: llama.cpp computes another model.
    """
    rig.start(OURS)
    # Its flash attention computes in half precision on a CPU.
    with rig.start_llama("--flash-attn", "off") as exact:
        compare_replies(rig, LlamaClient(exact), LLAMA)
    run_beside(rig, LLAMA, LLAMA_TTFT, LLAMA_PREFILL, LLAMA_DECODE)
