"""The dtype of a model follows from its device, its checkpoint and the configuration."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from ts_stateful.language.network.checkpoint import choose_dtype, has_bfloat16

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, "float16", None])
def test_a_cpu_rounds_no_weights(stored: torch.dtype | str | None) -> None:
    """A checkpoint that is not stored in bfloat16 is computed in float32, whatever the processor has."""
    assert choose_dtype("auto", CPU, stored, bfloat16=True) is torch.float32


@pytest.mark.parametrize("stored", [torch.bfloat16, "bfloat16"])
def test_a_cpu_computes_in_bfloat16_where_it_costs_nothing(stored: torch.dtype | str) -> None:
    """It needs a checkpoint stored in bfloat16, and hardware that multiplies it."""
    assert choose_dtype("auto", CPU, stored, bfloat16=True) is torch.bfloat16
    assert choose_dtype("auto", CPU, stored, bfloat16=False) is torch.float32


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, None])
def test_a_gpu_computes_in_bfloat16(stored: torch.dtype | None) -> None:
    """Whatever the checkpoint holds."""
    assert choose_dtype("auto", GPU, stored, bfloat16=False) is torch.bfloat16


@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_the_configuration_has_the_last_word(
    wanted: Literal["float32", "bfloat16", "float16"], device: torch.device
) -> None:
    """A configured dtype is used."""
    found = choose_dtype(wanted, device, torch.bfloat16, bfloat16=True)
    assert found is getattr(torch, wanted)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, False),
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"avx512_bf16": True}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
    ],
)
def test_hardware_is_known_by_its_capabilities(
    capabilities: dict[str, bool], expected: bool
) -> None:
    """AVX512-BF16 (AMD since Zen 4, Intel since Cooper Lake) or AMX."""
    assert has_bfloat16(capabilities) is expected


def test_the_names_of_capabilities_are_torchs() -> None:
    """On a processor with AVX-512, torch reports whether it has bfloat16."""
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("avx512_f"):
        assert {"avx512_bf16", "amx_bf16"} <= set(capabilities)
