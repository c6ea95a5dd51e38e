"""What the settings that come with a model change in its logits before a token is chosen.

Many checkpoints ask for a repetition penalty in their generation_config.json, and stock `generate` applies it to greedy
replies as well. It is applied here by the library's own processors, so that a reply stays what `generate` would give.

Owns which of these settings are followed. Knows nothing of sampling, which the client decides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ts_stateful.language.kv.to_device import to_device

__all__ = ["Penalties"]

logger = logging.getLogger(__name__)

# Settings that make greedy replies of `generate` others, and that are not followed, with what changes nothing.
_IGNORED: dict[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "guidance_scale": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "begin_suppress_tokens": ([],),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "penalty_alpha": (0,),
    "dola_layers": (),
}


class Penalties:
    """What one model asks for; nothing, for most."""

    def __init__(self, settings: GenerationConfig, eos_ids: Sequence[int], name: str) -> None:
        self._processors = LogitsProcessorList(_followed(settings, eos_ids))
        for key, neutral in _IGNORED.items():
            value = getattr(settings, key, None)
            if value is not None and value not in neutral:
                logger.warning(
                    "%s: generation_config.json asks for %s, which is not done", name, key
                )

    def __call__(self, logits: Tensor, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Logits `(rows, vocabulary)` behind the ids `contexts`, as the next token is to be chosen from."""
        if not self._processors:
            return logits
        rows = []
        for row, ids in zip(logits.float().split(1), contexts, strict=True):
            rows.append(self._processors(to_device(ids, row.device).unsqueeze(0), row))
        return torch.cat(rows)


def _followed(settings: GenerationConfig, eos_ids: Sequence[int]) -> list[Any]:
    """The processors in the order of `GenerationMixin._get_logits_processor`."""
    processors: list[Any] = []
    if settings.sequence_bias is not None:
        processors.append(SequenceBiasLogitsProcessor(settings.sequence_bias))
    if settings.repetition_penalty not in (None, 1.0):
        processors.append(RepetitionPenaltyLogitsProcessor(float(settings.repetition_penalty)))
    if settings.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(settings.no_repeat_ngram_size))
    if settings.bad_words_ids is not None:
        eos = torch.tensor(sorted(eos_ids)) if eos_ids else None
        processors.append(NoBadWordsLogitsProcessor(settings.bad_words_ids, eos))
    if settings.suppress_tokens is not None:
        processors.append(SuppressTokensLogitsProcessor(settings.suppress_tokens))
    return processors
