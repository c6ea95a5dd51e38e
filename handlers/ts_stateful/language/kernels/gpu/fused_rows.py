"""Steps of few rows on a GPU by fused kernels, where these agree with the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ts_stateful.language.kernels.decoder_layout import UnknownDecoderError, find_decoder
from ts_stateful.language.kernels.gpu.cuda_graphs import RowInputs
from ts_stateful.language.kernels.samples import apart, sample_rows
from ts_stateful.language.kv.spans import Rows

if TYPE_CHECKING:  # it has them verified
    from ts_stateful.language.network.forward import Forward

__all__ = ["FusedRows", "find_fused_rows"]

logger = logging.getLogger(__name__)

FusedRows = Callable[[RowInputs], Tensor | None]
"""Returns the logits of rows, or None where the model must compute them."""

# Tokens of the sequences before the step by which they are compared.
_COUNTS = (70, 1), (2, 2), (9, 1), (1, 1), (130, 3)


def find_fused_rows(forward: Forward) -> FusedRows | None:
    """Return fused kernels that agree with the model, which has its attention kernels; else log why there are none."""
    reason, level = "", logging.WARNING
    try:
        # Triton is installed only with a GPU.
        from ts_stateful.language.kernels.gpu.decoder import FusedDecoder  # noqa: PLC0415
        from ts_stateful.language.kernels.gpu.triton import TritonKernels  # noqa: PLC0415

        kernels = forward.cache.kernels
        assert isinstance(kernels, TritonKernels)
        decoder = find_decoder(forward.network)
        fused = FusedDecoder(decoder, forward.layout, forward.windows, kernels)
        reason = difference(forward, fused)
    except torch.AcceleratorError:
        raise  # the device cannot compute any more
    except UnknownDecoderError as error:
        reason, level = str(error), logging.INFO
    except Exception as error:  # compilers may raise anything
        reason = f"{type(error).__name__}: {error}"
    if reason:
        logger.log(level, "torch's operators compute the decoder layers: %s", reason)
        return None
    logger.info("fused kernels compute the decoder layers of steps of few tokens")
    return fused


@torch.inference_mode()
def difference(forward: Forward, fused: FusedRows) -> str:
    """Return how logits or states of steps differ from the model's; empty if they agree."""
    one, other = sample_rows(forward, _COUNTS)
    for rows in (one, other.first(1)):
        inputs = RowInputs(
            len(rows.ids), len(forward.layout.layers), forward.position_axes, forward.device
        )
        inputs.fill(rows)
        for part in _new_states(rows):
            part.zero_()
        found = fused(inputs)
        if found is None:
            return "it returned no logits"
        written = torch.cat([part.flatten() for part in _new_states(rows)])
        expected = forward.decode(inputs)
        states = torch.cat([part.flatten() for part in _new_states(rows)])
        for what, ours, theirs in (("logits", found, expected), ("states", written, states)):
            reason = apart(ours.float(), theirs.float(), forward.dtype)
            if reason:
                return f"{what}: {reason}"
    return ""


def _new_states(rows: Rows) -> list[Tensor]:
    """Return the states of the step's tokens."""
    return [part[:, span.start : span.stop] for span in rows.spans for part in span.kv.states]
