"""The choice of attention kernels for a device."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from ts_stateful.cpu_kernels.build import cache_folder, load_library
from ts_stateful.language.kernels.attention import StepCache
from ts_stateful.language.kernels.cpu.attention import CpuKernels
from ts_stateful.language.kernels.rule import Rule
from ts_stateful.language.kernels.states import Kernels
from ts_stateful.language.kv.cache import KVCache
from ts_stateful.language.kv.layout import KVLayout
from ts_stateful.language.kv.spans import Span

__all__ = ["find_kernels", "verify_kernels"]

logger = logging.getLogger(__name__)

_SPANS = ((0, 1), (70, 1), (3, 5), (300, 1))  # for verification: tokens before the step, and in it
_WINDOW = 33
_SOFTCAP = 5.0
_EARLY_LAUNCHES = (
    9  # the compute capability from which on a kernel may be launched while the one before it runs
)
_TOLERANCE = {torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def find_kernels(layout: KVLayout, num_heads: int, device: torch.device) -> Kernels | None:
    """Return the kernels for a model of `num_heads` query heads; None where torch's operators must compute.

    Kernels are used only after they agreed with torch's operators on this device, with this model's dimensions.
    """
    makers = {"cuda": _triton, "cpu": _cpu}
    try:
        make = makers[device.type](layout, device) if device.type in makers else None
        if make is None:
            return None
        reason = verify_kernels(make, layout, num_heads, device)
    except torch.AcceleratorError:
        raise  # the device cannot compute any more
    except Exception as error:  # triton may be missing, and compilers may raise anything
        reason = f"{type(error).__name__}: {error}"
    if reason:
        logger.warning("torch's operators compute the attention: %s", reason)
        return None
    assert make is not None
    return make(layout)


def _triton(_: KVLayout, device: torch.device) -> Callable[[KVLayout], Kernels]:
    from ts_stateful.language.kernels.gpu.triton import TritonKernels  # noqa: PLC0415 - triton

    facts = torch.cuda.get_device_properties(device)
    early = facts.major >= _EARLY_LAUNCHES
    shared_bytes = facts.shared_memory_per_block_optin  # type: ignore[attr-defined]
    sizes = facts.multi_processor_count, shared_bytes
    return lambda layout: TritonKernels(layout, *sizes, early=early)


def _cpu(layout: KVLayout, _: torch.device) -> Callable[[KVLayout], Kernels] | None:
    library = load_library(cache_folder(), "language") if CpuKernels.serves(layout) else None
    return None if library is None else lambda layout: CpuKernels(layout, library)


@torch.inference_mode()
def verify_kernels(
    make: Callable[[KVLayout], Kernels], layout: KVLayout, num_heads: int, device: torch.device
) -> str:
    """Return how the kernels that `make` returns for a layout differ from torch's operators; empty if they agree."""
    shapes = tuple(dict.fromkeys(shape for shape in layout.layers if shape.heads))
    layout = KVLayout(shapes, layout.dtype)
    kernels = make(layout)
    sinks = torch.linspace(-1, 3, num_heads, device=device)
    rules = (Rule(None), Rule(0.5, _SOFTCAP, sinks.to(layout.dtype)))
    bound = _TOLERANCE[layout.dtype]
    for layer, shape in enumerate(shapes):
        for rule in rules:
            for window in (None, _WINDOW):
                case = f"{shape}, window {window}, soft cap {rule.softcap}"
                expected, states = _step(None, layout, num_heads, device, layer, rule, window)
                found, written = _step(kernels, layout, num_heads, device, layer, rule, window)
                if not torch.equal(states, written):
                    return f"states are written to wrong places ({case})"
                apart = float((found.float() - expected.float()).abs().max())
                if not apart <= bound:  # also NaN
                    return f"outputs differ by {apart:.2g} ({case})"
    return ""


def _step(
    kernels: Kernels | None,
    layout: KVLayout,
    num_heads: int,
    device: torch.device,
    layer: int,
    rule: Rule,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    """Return a layer's attention in a step on random states, and all these states afterwards, flattened and joined."""
    generator = torch.Generator(device).manual_seed(0)

    def random(heads: int, num_tokens: int, dim: int) -> Tensor:
        made = torch.randn(num_tokens, heads, dim, generator=generator, device=device)
        return made.to(layout.dtype).transpose(0, 1)

    caches = [KVCache(layout, device) for _ in _SPANS]
    for kv, (start, _) in zip(caches, _SPANS, strict=True):
        kv.reserve(start)
        for part in kv.states:
            part[:, :start] = random(part.shape[0], start, part.shape[2])
    spans = [Span(kv, *counts) for kv, counts in zip(caches, _SPANS, strict=True)]
    num_tokens = sum(span.num_tokens for span in spans)
    cache = StepCache(len(layout.layers))
    cache.kernels = kernels
    cache.begin(spans, flat=True)
    heads, key_dim, value_dim = layout.layers[layer]
    states, _ = cache.update(
        random(heads, num_tokens, key_dim)[None], random(heads, num_tokens, value_dim)[None], layer
    )
    output: Tensor = states.attend(random(num_heads, num_tokens, key_dim)[None], rule, window)
    kept = [
        part[:, : span.stop].flatten()
        for span in spans
        for part in (span.kv.keys(layer), span.kv.values(layer))
    ]
    return output, torch.cat(kept)
