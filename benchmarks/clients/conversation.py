"""A conversation with a system, the text of its replies with times, and the interface of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from benchmarks.inputs import Inputs
from benchmarks.model import IMAGE_TOKENS, TEMPLATE_TOKENS

__all__ = ["Arrival", "Client", "Conversation", "Turn"]


class Arrival(NamedTuple):
    """Text that arrived: its time (seconds of `time.perf_counter`), and the tokens of the reply so far."""

    at: float
    num_tokens: int


class Turn(NamedTuple):
    """One streamed reply as its client received it."""

    sent_at: float
    arrivals: tuple[Arrival, ...]
    text: str
    engine_ms: float | None = None  # from the arrival at the engine to the first token

    @classmethod
    def of(
        cls, sent_at: float, pieces: Sequence[tuple[float, str]], engine_ms: float | None = None
    ) -> Turn:
        """Return the turn of these pieces; tokens are counted as words."""
        arrivals, num_tokens = [], 0
        for at, piece in pieces:
            num_words = len(piece.split())
            if num_words:
                num_tokens += num_words
                arrivals.append(Arrival(at, num_tokens))
        return cls(sent_at, tuple(arrivals), "".join(piece for _, piece in pieces), engine_ms)

    @property
    def first_ms(self) -> float:
        """The time from sending the request to the first text, in milliseconds."""
        return 1000 * (self.arrivals[0].at - self.sent_at)

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole reply."""
        return self.arrivals[-1].num_tokens


class Client(Protocol):
    """A connection to one system, for one conversation at a time."""

    def open(self, image: bytes | None) -> str:
        """Begin a conversation, about an image if there is one; return its id."""
        ...

    def ask(self, conversation_id: str, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        """Run one turn. `prompt` are the ids of its words, without the template's tokens."""
        ...

    def close(self, conversation_id: str) -> None:
        """End the conversation."""
        ...

    def disconnect(self) -> None:
        """Close the connection."""
        ...


class Conversation:
    """One conversation; `num_tokens` is the length of its context, replies included."""

    def __init__(self, client: Client, image: bytes | None = None) -> None:
        self._client = client
        self.id = client.open(image)
        self.num_tokens = 0 if image is None else IMAGE_TOKENS

    @classmethod
    def of_length(
        cls, client: Client, inputs: Inputs, num_tokens: int, image: bytes | None
    ) -> Conversation:
        """Begin a conversation whose context has so many tokens after its first turn."""
        made = cls(client, image)
        made.ask(inputs.prompt(num_tokens - made.num_tokens - 1), 1)
        assert made.num_tokens == num_tokens
        return made

    def ask(self, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        """Run one turn; raise RuntimeError if the reply's length differs from the requested one."""
        turn = self._client.ask(self.id, prompt, max_new_tokens)
        if not turn.arrivals or turn.num_tokens != max_new_tokens:
            got = turn.num_tokens if turn.arrivals else 0
            raise RuntimeError(f"a reply of {got} tokens where {max_new_tokens} were requested")
        self.num_tokens += len(prompt) + TEMPLATE_TOKENS + max_new_tokens
        return turn

    def close(self) -> None:
        """End the conversation."""
        self._client.close(self.id)
