"""Forward passes over the next tokens of many sequences at once."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from traceback import clear_frames
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ts_stateful.language.ahead import Ahead, compute_rows
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.encoders.encoder import Shown
from ts_stateful.language.kv.host_copies import HostCopy, to_device
from ts_stateful.language.kv.spans import Span
from ts_stateful.language.network.image_positions import image_positions
from ts_stateful.language.network.load import Model
from ts_stateful.language.network.memory import is_out_of_memory
from ts_stateful.language.network.sampler import SamplingRow
from ts_stateful.language.scheduler import Chunk

__all__ = ["Logits", "Runner"]

logger = logging.getLogger(__name__)


class Logits(NamedTuple):
    """Logits `(tokens, vocabulary)` after the last known token of some sequences, and after each of its draft."""

    sequences: list[Sequence]
    rows: Tensor

    @staticmethod
    def join(parts: Items[Logits]) -> Logits:
        """Join the logits of several passes; one without sequences adds no rows, and needs no device."""
        some = [part for part in parts if part.sequences]
        if len(some) == 1:
            return some[0]
        rows = torch.cat([part.rows for part in some]) if some else torch.empty(0)
        return Logits([sequence for part in some for sequence in part.sequences], rows)


class _Segment(NamedTuple):
    """Tokens `start` to `stop` of a sequence that go into one pass."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def ids(self) -> list[int]:
        known = self.sequence.ids[self.start : self.stop]
        return known + self.sequence.draft if self.stop > len(self.sequence.ids) else known

    @property
    def due(self) -> range:
        """Its tokens, counted from its first one, after which logits are wanted."""
        return range(max(0, len(self.sequence.ids) - 1 - self.start), self.stop - self.start)

    @property
    def span(self) -> Span:
        """Their place in the session's states, with the blocks that are among them."""
        blocks = [b for b in self.sequence.blocks if self.start <= b.start and b.stop <= self.stop]
        return Span(self.sequence.context.kv, self.start, self.stop - self.start, blocks)

    @property
    def is_of_use(self) -> bool:
        """False for tokens of a prompt without a reply, where states are of use for the reply alone."""
        return self.sequence.generates or not self.sequence.context.kv.per_prompt

    def begin(self) -> None:
        """Keep what a failed step goes back to."""
        if (recurrent := self.sequence.context.kv.recurrent) is not None:
            recurrent.begin()

    def end(self) -> None:
        """Keep the states from which the reply may begin again; those of a draft are valid when it is accepted."""
        kv = self.sequence.context.kv
        if kv.recurrent is not None and self.stop == self.sequence.num_prompt - 1:
            kv.recurrent.keep(self.stop)
        kv.length = min(kv.length, len(self.sequence.ids))

    @property
    def has_image(self) -> bool:
        """True if some of its tokens stand for an image."""
        mask = self.sequence.image_mask
        return mask is not None and 1 in mask[self.start : self.stop]


class Runner:
    """Runs one model on one device.

    A step is one pass over the new tokens of all its sequences, and a second one for tokens that stand for images. A model that
    cannot take several sequences in one pass gets one pass for each, just as exact; with recurrent states, one pass for those
    that have a single new token.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._forward = model.forward
        # A CPU would only do the same work in another order. Graphs have no images beside the text.
        beside = model.encoder is not None and model.encoder.is_beside
        self.runs_ahead = model.forward.device.type == "cuda" and not beside
        self.ahead: Ahead | None = None  # for the next step alone
        self.num_ahead = 0  # tokens whose logits were computed so

    @torch.inference_mode()
    def run(self, chunks: Iterable[Chunk[Sequence]]) -> Logits:
        """Compute every chunk; return the logits of the sequences whose last token was among them.

        After an error every sequence is as it was before. What was computed ahead is not computed again.
        """
        chunks = list(chunks)
        computed = self.ahead.find(chunks) if self.ahead is not None else {}
        left = [chunk for chunk in chunks if chunk[0] not in computed] if computed else chunks
        segments = [self._segment(*chunk) for chunk in left]
        for segment in segments:
            segment.begin()
        try:
            results = [self._encode(segment) for segment in segments if not segment.is_of_use]
            of_use = [segment for segment in segments if segment.is_of_use]
            results += [self._pass(group) for group in self._passes(of_use)]
            if self.ahead is not None and computed:
                results.append(Logits([*computed], self.ahead.rows([*computed.values()])))
            logits = Logits.join(results)
        except BaseException:
            for sequence, start, _ in segments:
                sequence.context.kv.truncate(start)
            raise
        for segment in segments:
            segment.end()
        for sequence in computed:
            sequence.context.kv.length += 1
        self.num_ahead += len(computed)
        return logits

    @torch.inference_mode()
    def run_ahead(self, sequences: Items[Sequence], tokens: Tensor) -> list[int]:
        """Return the next tokens of these turns, chosen on the device; meanwhile it computes the step after them.

        The turns are as `depends_on_token_alone` has it. If the step cannot be computed, it comes later, as any other.
        """
        chosen = HostCopy(tokens)  # before the pass, which is not waited for
        try:
            self.ahead = self._launch(sequences, tokens, chosen)
        except torch.AcceleratorError:
            raise  # as in any pass
        except Exception as error:  # a model may raise anything
            clear_frames(error.__traceback__)
            if not is_out_of_memory(error):  # which passes; this would come again
                logger.warning("no step is computed ahead: %s: %s", type(error).__name__, error)
                self.runs_ahead = False
        return chosen.values

    def _launch(self, sequences: Items[Sequence], tokens: Tensor, chosen: HostCopy) -> Ahead | None:
        """Launch the pass over the tokens of the turns that may go on; return None if there are none, or no graph fits."""
        going = [index for index, sequence in enumerate(sequences) if sequence.num_after_next]
        if not going:
            return None
        if len(going) < len(sequences):
            sequences = [sequences[index] for index in going]
            tokens = tokens[to_device(going, tokens.device)]
        logits = compute_rows(self._forward, tokens, *self.places(sequences))
        return None if logits is None else Ahead(sequences, going, chosen, logits)

    def places(self, sequences: Items[Sequence], after: int = 0) -> tuple[list[Span], Tensor]:
        """Return the span and the position of one token of each turn: the next one to compute, or one so many after it."""
        segments = [self._segment(sequence, 1, after) for sequence in sequences]
        spans, positions = [segment.span for segment in segments], self._positions(segments)
        return spans, self._forward.text_positions(spans) if positions is None else positions

    def _segment(self, sequence: Sequence, num_tokens: int, after: int = 0) -> _Segment:
        start = sequence.context.kv.length + after
        return _Segment(sequence, start, start + num_tokens)

    def _passes(self, segments: list[_Segment]) -> Iterator[list[_Segment]]:
        """Yield the segments that go through the model together.

        A generated or written image token would count as a real one beside real image tokens. So segments with images go apart
        from those without, and are cut around such strays, unless their prompt cannot be cut.
        """
        with_images = [segment for segment in segments if segment.has_image]
        text_only = [segment for segment in segments if not segment.has_image]
        clean = [segment for segment in with_images if not self._strays(segment)]
        for group in (text_only, clean):
            together = [segment for segment in group if self._goes_together(segment)]
            if together:
                yield together
            yield from ([segment] for segment in group if not self._goes_together(segment))
        for segment in with_images:
            strays = self._strays(segment)
            if strays:
                bounds = {segment.start, segment.stop, *strays, *(stray + 1 for stray in strays)}
                for start, stop in itertools.pairwise(sorted(bounds)):
                    yield [_Segment(segment.sequence, start, stop)]

    def _goes_together(self, segment: _Segment) -> bool:
        is_next = segment.stop == segment.start + 1 > 1 and not segment.has_image
        return self._forward.flat or (self._forward.batched and is_next)

    def _strays(self, segment: _Segment) -> list[int]:
        tokens, mask = self._model.media_tokens, segment.sequence.image_mask
        assert mask is not None
        if segment.sequence.context.kv.per_prompt:
            return []
        ids = segment.sequence.ids
        return [
            i
            for i in range(segment.start, segment.stop)
            if ids[i] in tokens and 1 not in mask[i : i + 1]
        ]

    def _encode(self, segment: _Segment) -> Logits:
        """Encode the images of a sequence, whose logits nobody reads."""
        sequence, encoder, forward = segment.sequence, self._model.encoder, self._forward
        for image in sequence.all_images:
            if encoder is not None and image.features is None:
                encoder.tower_of(image).encode(image)
        rows = torch.zeros(1, forward.vocab_size, dtype=forward.dtype, device=forward.device)
        return Logits([sequence], rows)

    def _pass(self, segments: list[_Segment]) -> Logits:
        spans = [segment.span for segment in segments]
        ends = list(itertools.accumulate(span.num_tokens for span in spans))
        due = [
            end - span.num_tokens + token
            for segment, span, end in zip(segments, spans, ends, strict=True)
            for token in segment.due
        ]
        ids = [token for segment in segments for token in segment.ids]
        rows = self._forward(
            ids,
            spans,
            self._positions(segments),
            due or [ends[-1] - 1],  # a model needs at least one
            [segment.sequence.context.adapter for segment in segments],
            self._draws(segments),
            **self._encoded(segments),
        )
        return Logits([segment.sequence for segment in segments if segment.due], rows[: len(due)])

    def _draws(self, segments: Items[_Segment]) -> list[SamplingRow] | None:
        """Return by which parameters the tokens that are due are chosen; None if that takes all logits of one of them."""
        draws: list[SamplingRow] = []
        for segment in segments:
            if segment.due:
                own = segment.sequence.draws(len(segment.due))
                if own is None or self._model.penalties.change_all:
                    return None
                draws += own
        return draws or [SamplingRow()]

    def _encoded(self, segments: Items[_Segment]) -> dict[str, Any]:
        """Return what the model needs of the images among these tokens, if there are any."""
        encoder = self._model.encoder
        if encoder is None or not (encoder.is_beside or segments[0].has_image):
            return {}
        return encoder.inputs(
            [Shown(each.all_images, each.image_mask, *ends) for each, *ends in segments]
        )

    def _positions(self, segments: Items[_Segment]) -> Tensor | None:
        """Return positions `(3, 1, n)` for models with M-RoPE, else None."""
        if self._forward.rope_index is None:
            return None
        return torch.cat([self._rope_positions(segment) for segment in segments], dim=-1)

    def _rope_positions(self, segment: _Segment) -> Tensor:
        sequence, start, stop = segment
        index = torch.arange(start, stop)
        if sequence.positions is None:
            sequence.positions = self._image_positions(sequence)
        prompt = sequence.positions  # (3, 1, num_prompt)
        if prompt is None:
            return index.expand(3, 1, -1)
        # After the prompt there is only text, whose positions continue from the highest one.
        after = index[max(0, sequence.num_prompt - start) :]
        after = after + int(prompt.max()) + 1 - sequence.num_prompt
        return torch.cat([prompt[..., start:stop], after.expand(3, 1, -1)], dim=-1)

    def _image_positions(self, sequence: Sequence) -> Tensor | None:
        """Return the positions of a prompt; None if it has no images."""
        mask, encoder, rope_index = (
            sequence.image_mask,
            self._model.encoder,
            self._forward.rope_index,
        )
        images = [image for image in sequence.all_images if image.grid is not None]
        if not images or mask is None or encoder is None or rope_index is None:
            return None
        ids, token = sequence.ids[: sequence.num_prompt], encoder.tower_of(images[0]).token_id
        shows = bytes(stands and id == token for id, stands in zip(ids, mask, strict=True))
        grids = torch.cat([image.grid for image in images if image.grid is not None])
        return image_positions(rope_index, ids, shows, grids)
