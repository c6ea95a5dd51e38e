"""Changes of logits before a token is chosen, by a model's generation settings and by a request's."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.kv.host_copies import to_device
from ts_stateful.language.network.row_penalties import (
    NO_PENALTIES,
    PenaltySettings,
    RowPenalties,
    add_biases,
    add_penalties,
    scale_seen,
)
from ts_stateful.protocol.requests import Prompt

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
    "force_words_ids": (),
    "constraints": (),
    "token_healing": (False,),
    "stop_strings": ([], ""),
    "max_time": (),
    "cache_implementation": tuple({*ALL_CACHE_IMPLEMENTATIONS} - {"quantized"}),
}


class Penalties:
    """The settings of one model; none, for most.

    Many checkpoints have a repetition penalty in their generation_config.json, which stock `generate` applies to greedy replies
    too. The library's own processors apply here what only a checkpoint can ask for, so that a reply stays what `generate` would
    give. What requests can ask for is applied to all rows at once.
    """

    def __init__(
        self, settings: GenerationConfig, eos_ids: Sequence[int], vocab_size: int, name: str
    ) -> None:
        """Read the settings of a model with so many logits.

        Raises:
            ConfigError: `generate` would refuse one of them.
        """
        bias, repetition = settings.sequence_bias, settings.repetition_penalty
        self._repetition = 1.0 if repetition is None else float(repetition)
        try:
            if self._repetition <= 0:
                raise ValueError(f"repetition_penalty has to be above 0, not {repetition}")
            self._first = [] if bias is None else [SequenceBiasLogitsProcessor(bias)]
            self._last = _followed(settings, eos_ids)
            tried = copy.deepcopy([*self._first, *self._last])  # they keep the device of a call
            _processed(tried, torch.zeros(1, vocab_size), [[0]])
        except ValueError as error:  # also of a token that the model does not have
            raise ConfigError(f"{name}: generation_config.json: {error}") from None
        for key, neutral in _IGNORED.items():
            value = getattr(settings, key, None)
            if value is not None and value not in neutral:
                logger.warning(
                    "%s: generation_config.json sets %s, which is not supported", name, key
                )

    @property
    def change_all(self) -> bool:
        """Return True if the model's settings change the logits of every row."""
        return bool(self._first or self._last)

    def row(self, command: Prompt, num_prompt: int) -> RowPenalties:
        """Return the settings of a turn, whose reply begins after `num_prompt` ids."""
        asked = command.repetition_penalty
        settings = PenaltySettings(
            bias=command.logit_bias,
            repetition=self._repetition if asked is None else asked,
            presence=command.presence_penalty,
            frequency=command.frequency_penalty,
        )
        return NO_PENALTIES if settings == PenaltySettings() else RowPenalties(settings, num_prompt)

    def __call__(
        self, logits: Tensor, contexts: Sequence[Sequence[int]], rows: Sequence[RowPenalties]
    ) -> Tensor:
        """Return the logits `(rows, vocabulary)` after the ids `contexts` with all changes; the given ones stay as they are.

        The order is that of `GenerationMixin._get_logits_processor`; presence and frequency, which it lacks, come last.
        """
        if not self.change_all and all(row is NO_PENALTIES for row in rows):
            return logits
        for row, ids in zip(rows, contexts, strict=True):
            row.update(ids)
        changed = logits.to(torch.float32, copy=True)
        changed = _processed(self._first, changed, contexts)
        add_biases(changed, rows)
        scale_seen(changed, rows)
        changed = _processed(self._last, changed, contexts)
        add_penalties(changed, rows)
        return changed


def _processed(
    processors: Sequence[LogitsProcessor], logits: Tensor, contexts: Sequence[Sequence[int]]
) -> Tensor:
    """Apply the library's processors, which take rows of equally many ids, row by row."""
    if not processors:
        return logits
    apply = LogitsProcessorList(processors)
    return torch.cat(
        [
            apply(to_device(ids, row.device).unsqueeze(0), row)
            for row, ids in zip(logits.split(1), contexts, strict=True)
        ]
    )


def _followed(settings: GenerationConfig, eos_ids: Sequence[int]) -> list[Any]:
    """Return the processors that come after a repetition penalty."""
    processors: list[Any] = []
    if settings.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(settings.no_repeat_ngram_size))
    if settings.bad_words_ids is not None:
        eos = torch.tensor(sorted(eos_ids)) if eos_ids else None
        processors.append(NoBadWordsLogitsProcessor(settings.bad_words_ids, eos))
    if settings.suppress_tokens is not None:
        processors.append(SuppressTokensLogitsProcessor(settings.suppress_tokens))
    return processors
