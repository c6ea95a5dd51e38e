"""Changes of logits that a model's generation settings ask for, before a token is chosen."""

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

# Settings that change greedy replies of `generate` and are not supported, with their neutral values.
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
    """The settings of one model; none, for most.

    Many checkpoints have a repetition penalty in their generation_config.json, which stock `generate` applies to greedy replies
    too. The library's own processors apply it here, so that a reply stays what `generate` would give.
    """

    def __init__(self, settings: GenerationConfig, eos_ids: Sequence[int], name: str) -> None:
        self._processors = LogitsProcessorList(_followed(settings, eos_ids))
        for key, neutral in _IGNORED.items():
            value = getattr(settings, key, None)
            if value is not None and value not in neutral:
                logger.warning(
                    "%s: generation_config.json sets %s, which is not supported", name, key
                )

    def __call__(self, logits: Tensor, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits `(rows, vocabulary)` after the ids `contexts`, with penalties applied."""
        if not self._processors:
            return logits
        rows = []
        for row, ids in zip(logits.float().split(1), contexts, strict=True):
            rows.append(self._processors(to_device(ids, row.device).unsqueeze(0), row))
        return torch.cat(rows)


def _followed(settings: GenerationConfig, eos_ids: Sequence[int]) -> list[Any]:
    """Return the processors in the order of `GenerationMixin._get_logits_processor`."""
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
