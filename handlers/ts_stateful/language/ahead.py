"""The next step's pass, launched on a GPU before the host has done the work of the present step."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor

from ts_stateful.language.conversation.turn import Sequence, TurnStatus
from ts_stateful.language.kv.host_copies import HostCopy, to_device
from ts_stateful.language.kv.spans import Rows, Span
from ts_stateful.language.network.forward import Forward
from ts_stateful.language.scheduler import Chunk

__all__ = ["Ahead", "compute_rows", "depends_on_token_alone"]


def depends_on_token_alone(sequence: Sequence) -> bool:
    """Return True if a turn's next pass needs nothing of its next token but the id, and changes no state if the turn ends.

    Penalties and a grammar change how tokens are chosen, before that pass and after it. Log-probabilities are read after the
    choice, and would wait for the pass.
    """
    context = sequence.context
    return (
        sequence.num_logprobs is None
        and not sequence.draft
        and context.adapter is None
        and context.kv.recurrent is None
        and not context.kv.per_prompt
        and context.kv.length == len(sequence.ids)
    )


def compute_rows(
    forward: Forward, tokens: Tensor, spans: Items[Span], positions: Tensor
) -> Tensor | None:
    """Return logits after `tokens` `(spans,)`, on the device, without waiting for them; None if no graph fits.

    Makes room for the tokens and writes their states, but leaves the lengths of the sessions as they are.
    """
    if forward.graphs is None or forward.driver is not None:
        return None
    for span in spans:
        span.kv.reserve(span.stop)
    return forward.graphs(Rows([0] * len(spans), positions, spans), tokens)


class _Place(NamedTuple):
    row: int  # of the logits
    token: int  # of the chosen ones
    start: int  # of the pass in its session
    addresses: Any  # of the states when the pass was launched


class Ahead:
    """Logits after the tokens that a step has chosen, computed while the host still works on that step.

    They are for the next step alone, and for turns that go on with their token. Nothing is undone for the others. The pass has
    written a token's states after their session's `length`, and one thread queues all work on one stream. So

    - what is written there later, by the next pass of that session, is queued after it;
    - copies of the session's states (a fork, a snapshot, a move to the host or into more room) take those before `length`;
    - memory that is released goes to work which is queued later.

    States that have moved since lack the token's own. Then `addresses` are new, and the row is not used either. Turns that have
    ended are not kept alive, nor is the memory of their sessions.
    """

    def __init__(
        self, sequences: Items[Sequence], tokens: Items[int], chosen: HostCopy, logits: Tensor
    ) -> None:
        """Keep the logits `(len(sequences), vocabulary)` of turns, whose tokens are these of the chosen ones."""
        self._places: WeakKeyDictionary[Sequence, _Place] = WeakKeyDictionary()
        for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            kv = sequence.context.kv
            self._places[sequence] = _Place(row, token, kv.length, kv.addresses)
        self._chosen, self._logits = chosen, logits

    def find(self, chunks: Iterable[Chunk[Sequence]]) -> dict[Sequence, int]:
        """Return those turns of a step whose logits are here, with their rows."""
        found = {}
        for sequence, num_tokens in chunks:
            place = self._places.get(sequence)
            if place is not None and num_tokens == 1 and self._is_valid(sequence, place):
                found[sequence] = place.row
        return found

    def _is_valid(self, sequence: Sequence, place: _Place) -> bool:
        kv = sequence.context.kv
        return (
            sequence.status is TurnStatus.RUNNING
            and kv.addresses is place.addresses
            and kv.length == place.start
            and sequence.ids[place.start :] == [self._chosen.values[place.token]]
        )

    def rows(self, numbers: Items[int]) -> Tensor:
        """Return the logits of some rows."""
        if [*numbers] == [*range(len(self._logits))]:  # as long as no turn ends
            return self._logits
        return self._logits[to_device(numbers, self._logits.device)]
