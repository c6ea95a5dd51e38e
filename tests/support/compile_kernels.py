"""Compilation of the Triton kernels for GPUs that are absent; `python compile_kernels.py FOLDER` writes their PTX into it.

It needs its own process, because importing triton decides between compilation and interpretation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ts_stateful.language.kernels.gpu import decoder_code, triton_code

CAPABILITIES = (80, 90)  # A100, H100
_FLOATS = ("scale", "softcap", "epsilon", "offset", "factor")
_MULTIPLES = ("num_inputs", "num_outputs", "size")  # of 16
_STATE: dict[str, Any] = {"STATE": tl.bfloat16}
_DIMS = {"KEY_DIM": 128, "VALUE_DIM": 80, "KEY_BLOCK": 128, "VALUE_BLOCK": 128}
_PROJECTED = {
    "inputs": "*fp32",
    "scales": "*bf16",
    "weights": "*bf16",
    "biases": "*bf16",
    "outputs": "*bf16",
}
_ADDED = {**_PROJECTED, "inputs": "*bf16", "outputs": "*fp32"}
_PRODUCT: dict[str, Any] = {"PRODUCT": tl.bfloat16, "OUTPUTS": 16, "INPUTS": 256, "EVEN": False}
# By the names of files: a kernel, and what stands after a comma, if it is compiled twice.
_KERNELS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "write_kernel": (
        {"keys": "*bf16", "values": "*bf16", "table": "*i64"},
        {**_STATE, **_DIMS},
    ),
    "attend_kernel": (
        {"query": "*bf16", "partial": "*fp32", "weight": "*fp32", "table": "*i64"},
        {**_STATE, **_DIMS, "PRODUCT": tl.bfloat16, "GROUP": 4, "GROUP_BLOCK": 16, "TILE": 64, "SOFTCAP": True},
    ),
    "join_kernel": (
        {"partial": "*fp32", "weight": "*fp32", "output": "*bf16", "sinks": "*bf16", "table": "*i64"},
        {"VALUE_DIM": 80, "VALUE_BLOCK": 128, "TILE": 64, "SINKS": True},
    ),
    "project_kernel,one": (
        _PROJECTED,
        {**_PRODUCT, "ROWS": 1, "NORM": True, "BIASED": True, "ACTIVATION": decoder_code.SILU, "ADDS": False},
    ),
    "project_kernel,many": (
        _ADDED,
        {**_PRODUCT, "ROWS": 32, "NORM": False, "BIASED": False, "ACTIVATION": 0, "ADDS": True},
    ),
    "norm_kernel": (
        {"inputs": "*bf16", "scales": "*bf16", "outputs": "*fp32"},
        {"BLOCK": 4096, "ADDS": True},
    ),
    "turn_kernel": (
        {"projected": "*bf16", "cosines": "*bf16", "sines": "*bf16", "scales": "*bf16", "queries": "*bf16", "table": "*i64"},
        {**_STATE, "HEADS": 32, "KEY_HEADS": 8, "DIM": 80, "TURNED": 64, "NEIGHBORS": False, "NORM": True, "BLOCK": 128},
    ),
}  # fmt: skip


def main(folder: Path) -> None:
    """Write `<kernel>.<capability>.ptx` for each."""
    for name, (pointers, constants) in _KERNELS.items():
        kernel_name = name.split(",")[0]
        kernel = getattr(triton_code, kernel_name, None) or getattr(decoder_code, kernel_name)
        for capability in CAPABILITIES:
            constants["EARLY"] = capability >= 90
            kinds = {**dict.fromkeys(constants, "constexpr"), **pointers}
            source = ASTSource(
                fn=kernel,
                signature={
                    argument: kinds.get(argument, "fp32" if argument in _FLOATS else "i32")
                    for argument in kernel.arg_names
                },
                constexprs=constants,
                attrs={
                    (index,): [["tt.divisibility", 16]]
                    for index, argument in enumerate(kernel.arg_names)
                    if argument in pointers or argument in _MULTIPLES
                },
            )
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
            (folder / f"{name}.{capability}.ptx").write_text(made.asm["ptx"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
