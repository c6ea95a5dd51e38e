"""The step: a token for every turn that decodes, chunks of prompts beside them, and what follows from them."""

from __future__ import annotations

import itertools
from traceback import clear_frames

import torch
from torch import Tensor

from ts_stateful.engine.core import EngineCore
from ts_stateful.language.ahead import depends_on_token_alone
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.turn import Sequence, TurnStatus
from ts_stateful.language.defects import turn_defect
from ts_stateful.language.grammar.matcher import forbid
from ts_stateful.language.guesses import Guesses, round_layers
from ts_stateful.language.kv.host_copies import to_device
from ts_stateful.language.network.choices import find_choices
from ts_stateful.language.network.load import Model
from ts_stateful.language.network.logprobs import Chosen, choose_logprobs
from ts_stateful.language.network.memory import is_out_of_memory
from ts_stateful.language.network.sampler import choose_tokens, sample
from ts_stateful.language.runner import Logits, Runner
from ts_stateful.language.scheduler import Chunk
from ts_stateful.language.speculation import Drafter
from ts_stateful.language.turns.kv_lending import lend_common, unshare
from ts_stateful.language.turns.lifecycle import Turns
from ts_stateful.protocol.errors import OutOfMemory, StatefulError

__all__ = ["Decoding"]

_Row = tuple[Sequence, int]  # a turn, and the row of logits that chooses its next token


class Decoding:
    """Runs the steps of one engine."""

    def __init__(self, core: EngineCore[Context], model: Model, turns: Turns) -> None:
        self.runner = Runner(model)
        settings, is_cpu = core.config.handler, model.forward.device.type == "cpu"
        self.drafter = Drafter(enabled=settings.speculation and is_cpu)
        self.num_tokens = 0  # generated
        self._core = core
        self._model = model
        self._turns = turns
        self._kernels = find_choices(model.device)

    def tune(self) -> None:
        """Let the model guess tokens by weights in 8 bits, where that gains time."""
        settings, forward = self._core.config.handler, self._model.forward
        if settings.speculation and settings.draft_weights and (layers := round_layers(forward)):
            self.drafter.guesses = Guesses(self.runner, layers, self._kernels.draw_rows)

    def step(self) -> None:
        """Run the scheduler's next step."""
        began_at = self._core.clock.monotonic()
        chunks = self.drafter.extend(self._turns.scheduler.schedule())
        logits = self._forward(chunks)
        self.runner.ahead = None  # it is in these logits, or of no use any more
        for sequence, _ in chunks:
            lend_common(sequence)
        row, rows = 0, []
        for sequence in logits.sequences:
            rows.append((sequence, row))
            row += 1 + len(sequence.draft)
        for place in itertools.count():  # in the drafts
            rows = self._round(logits.rows, rows, place)
            if not rows:
                break
        self.drafter.end(self._core.clock.monotonic() - began_at)

    def _round(self, logits: Tensor, rows: list[_Row], place: int) -> list[_Row]:
        """Give each turn its next token; return those, with their next rows, whose drafts have it at this place."""
        due = []
        for sequence, row in rows:
            if not sequence.generates:
                self._turns.finish(sequence, "stop")
            elif self._may_go_on(sequence):
                due.append((sequence, row))
        if not due:
            return []
        if len(due) < len(logits):
            logits = logits[to_device([row for _, row in due], logits.device)]
        sequences = [sequence for sequence, _ in due]
        choices = self._choose(logits, sequences, self._runs_ahead(sequences))
        return [
            (sequence, row + 1)
            for (sequence, row), chosen in zip(due, choices, strict=True)
            if chosen is not None and self._take(sequence, chosen, place)
        ]

    def _may_go_on(self, sequence: Sequence) -> bool:
        """Find the tokens that a turn's grammar allows next; roll the turn back and return False if that fails."""
        try:
            if sequence.matcher is not None:
                sequence.matcher.compute_mask()
        except StatefulError as error:
            self._turns.fail(sequence, error)
            return False
        return True

    def _forward(self, chunks: list[Chunk[Sequence]]) -> Logits:
        """Run the passes of a step. A turn that makes them fail is rolled back and disturbs no other."""
        try:
            return self.runner.run(chunks)
        except torch.AcceleratorError:
            raise  # the device is poisoned: the process must die, and its supervisor starts another
        except Exception as error:  # a model may raise anything
            clear_frames(error.__traceback__)  # or they would keep what the pass has computed
            if is_out_of_memory(error) and self._free_memory():
                return self._forward(chunks)
            if len(chunks) > 1:
                # One that fails must not move the next.
                unshare([sequence for sequence, _ in chunks])
                return Logits.join([self._forward([chunk]) for chunk in chunks])
            ((sequence, _),) = chunks
            self._turns.fail(sequence, _reason(error, "a forward pass"))
            return Logits([], torch.empty(0))

    def _runs_ahead(self, sequences: list[Sequence]) -> bool:
        """Return True if the next step is to be computed as soon as the tokens of this one are chosen.

        Prompts that wait are computed beside the next tokens, in one pass.
        """
        return (
            self.runner.runs_ahead
            and not self._turns.scheduler.has_prompts
            and all(map(depends_on_token_alone, sequences))
        )

    def _choose(self, rows: Tensor, sequences: list[Sequence], ahead: bool) -> list[Chosen | None]:
        """Choose the next token of each, None where that fails: the turn is rolled back and disturbs no other.

        Short of memory, evict idle sessions. With `ahead` the next step is computed meanwhile.
        """

        def choose() -> list[Chosen]:
            contexts = [sequence.ids for sequence in sequences]
            penalties = [sequence.penalties for sequence in sequences]
            changed = self._model.penalties(rows, contexts, penalties)
            masks = [s.matcher.mask if s.matcher else None for s in sequences]
            changed = forbid(changed, masks, self._kernels.forbid_rows)
            settings = [sequence.sampling for sequence in sequences]
            inputs = changed, settings, self._kernels.draw_rows
            tokens = (
                self.runner.run_ahead(sequences, choose_tokens(*inputs))
                if ahead
                else sample(*inputs)
            )
            return choose_logprobs(rows, tokens, [sequence.num_logprobs for sequence in sequences])

        try:
            return [*choose()]
        except torch.AcceleratorError:
            raise  # as in a pass
        except Exception as error:  # a library's logits processor may raise anything
            clear_frames(error.__traceback__)
            if is_out_of_memory(error) and self._free_memory():
                return self._choose(rows, sequences, ahead)
            if len(sequences) == 1:
                self._turns.fail(sequences[0], _reason(error, "choosing a token"))
                return [None]
            single = zip(rows.split(1), sequences, strict=True)
            return [chosen for row, one in single for chosen in self._choose(row, [one], False)]

    def _free_memory(self) -> bool:
        """Evict every idle session; return False if that freed nothing."""
        table = self._core.table
        before = table.device_bytes
        table.evict_idle()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return table.device_bytes < before

    def _take(self, sequence: Sequence, chosen: Chosen, place: int) -> bool:
        """Add a token to a reply; return True if the reply goes on, and its draft has the token at this place."""
        assert sequence.status is TurnStatus.RUNNING
        try:
            self._add(sequence, chosen)
        except StatefulError as error:
            self._turns.fail(sequence, error)
        except Exception as error:  # a tokenizer may raise anything; the other rows go on
            self._turns.fail(sequence, turn_defect(error, "taking a token"))
        foreseen = chosen.token in sequence.draft[place : place + 1]
        goes_on = foreseen and sequence.status is TurnStatus.RUNNING
        if goes_on:
            sequence.context.kv.length += 1
        else:
            self.drafter.learn(sequence, place + foreseen)
        return goes_on

    def _add(self, sequence: Sequence, chosen: Chosen) -> None:
        self.num_tokens += 1
        self._core.quotas.spend(sequence.session.owner, 1)
        if sequence.first_token_at is None:
            sequence.first_token_at = self._core.clock.monotonic()
        reason = sequence.take(chosen, self._model.eos_ids)
        if reason is None:
            self._turns.waiters.progressed(sequence)
        else:
            self._turns.finish(sequence, reason)


def _reason(error: Exception, where: str) -> StatefulError:
    """Return the error that rolls a turn back."""
    if is_out_of_memory(error):
        return OutOfMemory("the device has no memory left for this turn")
    return turn_defect(error, where)
