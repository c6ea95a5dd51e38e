"""Embeddings of clips of audio, by the processor and the audio tower of a stock model that hears."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor, distributed
from transformers import PreTrainedModel

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.encoders.encoder import MediaInput, Tower
from ts_stateful.media.decoder.frames import Audible, Samples
from ts_stateful.media.digest import file_digest
from ts_stateful.media.load import MediaFile

__all__ = ["Hearing"]

_PACKAGES = ("soundfile", "soxr")
_MIN_SECONDS = 0.1  # shorter clips have no token, or a single one
_SAMPLE_SECONDS = (0.5, 1.7, 0.3), (0.5, 0.2, 0.3)


class _Embedded(Exception):
    """The language model was about to run, which is not needed."""


class Hearing(Tower[Samples]):
    """The audio part of a model.

    Its embeddings are those that the language model gets. So it needs to know neither the tower nor its projection, only that
    they come instead of the embeddings of tokens.
    """

    kind = part = "audio"

    def __init__(self, network: PreTrainedModel, processor: Any) -> None:
        missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"audio needs {' and '.join(missing)}, which is not installed:"
                " pip install 'torchserve-stateful[audio]'"
            )
        parameters = inspect.signature(network.forward).parameters
        if "inputs_embeds" not in parameters:
            raise ConfigError(f"{type(network).__name__} does not accept embeddings of audio")
        self._accepts = frozenset(parameters) - {"input_ids", "attention_mask"}
        extractor = _extractor(processor)
        self.rate: int = extractor.sampling_rate
        windows = getattr(processor, "max_audio_len", None)  # of a processor that cuts clips
        self.most_seconds = float(windows or extractor.chunk_length)
        super().__init__(network, processor, ())

    def _find_token(self, network: PreTrainedModel, processor: Any) -> tuple[str, int]:
        if getattr(processor, "audio_token", None) is None:
            raise ConfigError(f"{type(processor).__name__} has no audio_token")
        token: str = processor.audio_token
        return token, int(processor.tokenizer.convert_tokens_to_ids(token))

    def decode(self, file: MediaFile) -> Samples:
        """See `Encoder`."""
        return file.decode_audio(Audible(self.rate, _MIN_SECONDS, self.most_seconds))

    def key(self, decoded: Samples, *salts: str) -> str:
        """See `Encoder`."""
        return file_digest(decoded.tobytes(), "audio", *self._identity, *salts)

    def prepare(self, decoded: Samples, key: str = "") -> MediaInput:
        """See `Encoder`."""
        with self._lock:
            made = self._process([self.token], [decoded])
        tensors = {
            name: tensor
            for name, tensor in made.items()
            if name in self._accepts and isinstance(tensor, Tensor)
        }
        return MediaInput(key=key, ids=made["input_ids"][0].tolist(), grid=None, tensors=tensors)

    def process(
        self, text: str, decoded: Sequence[Samples], pictures: Sequence[PIL.Image.Image] = ()
    ) -> dict[str, Any]:
        """See `Encoder`; `pictures` are those in the same text.

        Some processors take one clip for each text: they get the text in pieces, whose ids are joined.
        """
        try:
            return self._process([text], decoded, pictures)
        except ValueError:
            *pieces, last = re.split(f"(?<={re.escape(self.token)})", text)
            made = self._process([*pieces[:-1], pieces[-1] + last], decoded)
        rows = zip(made["input_ids"], made["attention_mask"], strict=True)
        ids = torch.cat([row[kept.bool()] for row, kept in rows])[None]
        return {**made, "input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def _process(
        self,
        texts: list[str],
        clips: Sequence[Samples],
        pictures: Sequence[PIL.Image.Image] = (),
    ) -> dict[str, Any]:
        images = {"images": [list(pictures)]} if pictures else {}
        made = self._processor(
            text=texts,
            audio=list(clips),
            **images,
            return_tensors="pt",
            text_kwargs={"padding": True, "add_special_tokens": False},
            audio_kwargs={"sampling_rate": self.rate},
        )
        unused = getattr(self._processor, "unused_input_names", ())
        return {name: value for name, value in made.items() if name not in unused}

    def samples(self) -> list[list[Samples]]:
        """See `Encoder`."""
        return [[_chirp(seconds, self.rate) for seconds in lengths] for lengths in _SAMPLE_SECONDS]

    def _features(self, image: MediaInput, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        ids = torch.tensor([image.ids], device=self._network.device)
        found: list[Tensor] = []

        def stop(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
            found.append(kwargs["inputs_embeds"])
            raise _Embedded

        decoder = self._network.get_decoder()
        hook = decoder.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with _without_embeddings(self._network):
                self._network(input_ids=ids, **inputs, use_cache=False)
        except _Embedded:
            pass
        finally:
            hook.remove()
        return (found[0][0][ids[0] == self.token_id].clone(),)


@contextlib.contextmanager
def _without_embeddings(network: PreTrainedModel) -> Iterator[None]:
    """Let a split model embed ids as zeros: its ranks embed together, and only the driver runs towers."""
    if not distributed.is_initialized():
        yield
        return
    width = network.config.get_text_config(decoder=True).hidden_size
    embeddings = network.get_input_embeddings()
    split = embeddings.forward
    embeddings.forward = lambda ids: torch.zeros(
        *ids.shape, width, dtype=network.dtype, device=ids.device
    )
    try:
        yield
    finally:
        embeddings.forward = split


def _extractor(processor: Any) -> Any:
    found = getattr(processor, "feature_extractor", None)
    if found is None or not hasattr(found, "chunk_length"):
        raise ConfigError(f"{type(processor).__name__} does not say how long a clip may be")
    return found


def _chirp(seconds: float, rate: int) -> Samples:
    """Return a sound that is different everywhere."""
    times = np.arange(int(seconds * rate)) / rate
    sound = np.sin(2 * np.pi * (200 + 900 * times) * times) * np.linspace(0.1, 0.9, len(times))
    return sound.astype(np.float32)
