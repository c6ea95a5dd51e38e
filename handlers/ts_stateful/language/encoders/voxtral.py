"""The processor of Voxtral, whose stock one reads chats by mistral-common alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoFeatureExtractor, AutoTokenizer, BatchFeature, ProcessorMixin

from ts_stateful.media.decoder.frames import Samples

__all__ = ["VoxtralChats", "load_voxtral"]

_MAX_SECONDS = 40 * 60  # that the published models understand
_SPECIALS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}
# Version 7 of mistral-common's chats, without tools. Adjacent texts, and messages of one role, are joined by an empty line.
_TEMPLATE = """\
{%- set marks = {'system': ('[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]'), 'user': ('[INST]', '[/INST]'), 'assistant': ('', '</s>')} %}
{%- set before = namespace(role='', text=false, system=false) %}
{{- '<s>' }}
{%- for message in messages %}
  {%- if message.role not in marks %}{{ raise_exception('no role ' ~ message.role) }}{% endif %}
  {%- if message.role != before.role or message.role == 'system' %}
    {{- marks[message.role][0] }}
    {%- set before.role, before.text = message.role, false %}
  {%- endif %}
  {%- set before.system = before.system or message.role == 'system' %}
  {%- set parts = [{'type': 'text', 'text': message.content}] if message.content is string else message.content %}
  {%- for part in parts %}
    {%- if part.type == 'text' %}
      {{- ('\\n\\n' if before.text else '') ~ part.text }}
    {%- elif before.system %}
      {{- raise_exception('a system prompt cannot be beside audio') }}
    {%- else %}
      {{- '[AUDIO]' }}
    {%- endif %}
    {%- set before.text = part.type == 'text' %}
  {%- endfor %}
  {%- if loop.last or loop.nextitem.role != message.role or message.role == 'system' %}
    {{- marks[message.role][1] }}
  {%- endif %}
{%- endfor %}"""


class VoxtralChats(ProcessorMixin):  # type: ignore[misc]  # transformers is not typed
    """A processor of texts and clips; each `[AUDIO]` of a text stands for a clip.

    Attributes:
        max_audio_len: seconds of the longest clip.
        window_tokens: the tokens of a window of a clip. Silence fills the last one, as the stock processor has it.
    """

    max_audio_len = _MAX_SECONDS

    def __init__(self, feature_extractor: Any, tokenizer: Any) -> None:
        super().__init__(feature_extractor, tokenizer, chat_template=_TEMPLATE)
        self.audio_token, self.window_tokens = "[AUDIO]", 0

    def __call__(
        self, text: Sequence[str], audio: Sequence[Samples], **kwargs: Any
    ) -> BatchFeature:
        """Return ids and features of texts with clips, as other processors do."""
        features = [self._features(clip) for clip in audio]
        waiting = iter(features)

        def expanded(_found: re.Match[str]) -> str:
            return f"[BEGIN_AUDIO]{self.audio_token * (len(next(waiting)) * self.window_tokens)}"

        texts = [re.sub(re.escape(self.audio_token), expanded, each) for each in text]
        made = self.tokenizer(texts, return_tensors="pt", **kwargs["text_kwargs"])
        return BatchFeature({**made, "input_features": torch.cat(features)})

    def _features(self, clip: Samples) -> torch.Tensor:
        """Return the spectrograms `(windows, bins, frames)` of a clip."""
        extractor = self.feature_extractor
        (features,) = extractor(
            clip,
            sampling_rate=extractor.sampling_rate,
            truncation=False,
            padding=True,
            pad_to_multiple_of=extractor.n_samples,
            return_tensors="pt",
        )["input_features"]
        windows: torch.Tensor = features.reshape(len(features), -1, extractor.nb_max_frames)
        return windows.transpose(0, 1)


def load_voxtral(name: str, config: Any, **options: Any) -> VoxtralChats:
    """Load the processor of a folder or hub id, with its own chat template if it has one.

    Raises:
        OSError, ValueError, KeyError: as `AutoTokenizer`.
    """
    tokenizer = AutoTokenizer.from_pretrained(name, mistral_format=False, **options)
    for special, token in _SPECIALS.items():
        if getattr(tokenizer, special) is None:
            setattr(tokenizer, special, token)
    made = VoxtralChats(AutoFeatureExtractor.from_pretrained(name, **options), tokenizer)
    settings, _ = ProcessorMixin.get_processor_dict(name, **options)
    made.chat_template = settings.get("chat_template") or tokenizer.chat_template or _TEMPLATE
    tower = config.audio_config
    made.window_tokens = tower.max_source_positions * tower.hidden_size // tower.intermediate_size
    return made
