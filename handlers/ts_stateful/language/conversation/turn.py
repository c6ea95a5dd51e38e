"""A turn in progress: everything that lives from its request to its commit."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ts_stateful.language.conversation.context import Context, Past
from ts_stateful.language.conversation.drafts import TokenHistory
from ts_stateful.language.conversation.history import Message
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.grammar.matcher import Matcher
from ts_stateful.language.kv.prefix import MIN_TOKENS
from ts_stateful.language.kv.spans import Block
from ts_stateful.language.network.logprobs import Chosen
from ts_stateful.language.network.row_penalties import NO_PENALTIES, RowPenalties
from ts_stateful.language.network.sampler import SamplingRow
from ts_stateful.language.text.dialogue import Extension
from ts_stateful.language.text.reply import ReplyText
from ts_stateful.language.text.reply_parser import ReplyParser
from ts_stateful.protocol.chat import Discard, Parsing, Recall, Respond
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.logprobs import TokenLogprob
from ts_stateful.protocol.requests import Fork, Open, Prompt, Rewind
from ts_stateful.sessions.session import Session

__all__ = ["PendingContinue", "Sequence", "Subscriber", "TurnStatus"]


class TurnStatus(enum.Enum):
    """The stage of a turn."""

    LOADING = "loading"  # its images are on their way
    WAITING = "waiting"  # for the turns before it
    RUNNING = "running"
    COMMITTING = "committing"  # complete; its record is on its way to the store
    DONE = "done"


@dataclass(eq=False)
class Subscriber:
    """A request that waits for a turn; `sent` counts the characters of the reply that it has received.

    One that `recalls` the turn gets the turn's note, too.
    """

    request_id: str
    stream: bool
    pull: bool
    sent: int = 0
    # Ids of the reply that the worker has; a new engine resumes the turn with them.
    acked: int = 0
    parser: ReplyParser | None = None  # of what it has received
    next_at: float = 0.0  # the clock's time before which a stream gets nothing more
    recalls: bool = False

    @classmethod
    def of(cls, message: Submit) -> Subscriber:
        """Return the one for a request."""
        stream, recalls = message.streams and not message.pull, isinstance(message.command, Recall)
        sent, acked = message.skip, len(message.replay)
        return cls(message.request_id, stream, message.pull, sent, acked, recalls=recalls)


@dataclass(eq=False)
class PendingContinue:
    """A `continue` that waits for text after `after` characters, until `deadline`."""

    request_id: str
    after: int
    deadline: float


@dataclass(eq=False)
class Sequence:
    """A turn in progress, which inference engines call a sequence.

    An `open` is a turn that generates nothing; so are requests that only write.

    Times are of the engine's clock, in seconds.
    """

    session: Session[Context]
    command: Open | Prompt | Fork | Rewind | Discard
    submitted_at: float
    origin: str = ""  # id of the request
    creates_session: bool = False  # it opened its session
    ephemeral: bool = False  # its session ends with it
    forked: bool = False  # its session was made for it, from another one
    status: TurnStatus = TurnStatus.LOADING
    number: int = 0  # of the turn, from when it runs
    subscribers: list[Subscriber] = field(default_factory=list)
    continues: list[PendingContinue] = field(default_factory=list)
    # They have their answer; their clients come back with `continue`.
    pulled: list[Subscriber] = field(default_factory=list)
    orphaned_at: float | None = None  # when the last waiting request left
    images: list[MediaInput] = field(default_factory=list)  # new with this turn
    # Of images in a conversation that the client sent:
    urls: dict[str, MediaInput] = field(default_factory=dict)
    replay: tuple[Chosen, ...] = ()  # tokens that an engine that died had chosen already
    cancelled: bool = False
    cancels: list[str] = field(default_factory=list)  # ids of requests that wait for its end alone
    followers: list[Submit] = field(default_factory=list)  # requests to admit when it ends
    # From when it runs:
    alike: dict[Sequence, int] = field(default_factory=dict)  # see `kv_lending`
    ids: list[int] = field(default_factory=list)  # the whole context, the generated ids at the end
    draft: list[int] = field(default_factory=list)  # ids that may follow, computed in this step
    repeated: list[int] = field(default_factory=list)  # those that followed the last ids before
    history: TokenHistory = field(default_factory=TokenHistory)  # of `ids`, for drafts
    num_prompt: int = 0  # ids before the reply
    num_given: int = 0  # ids that were known when it began: the prompt's, and `replay`
    keep: int = 0  # ids of the session's log that stay as they are
    cached: int = 0  # ids whose KV was there
    past: Past | None = None  # the history that it continues, if that is not its session's
    messages: tuple[Message, ...] = ()
    extension: Extension | None = None  # of the session's log by the message
    reply: ReplyText | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the reply's ids, if asked for
    penalties: RowPenalties = NO_PENALTIES
    parsing: Parsing | None = None  # of the reply, if it is parsed
    parser: ReplyParser | None = None  # of the reply id by id, to count those that are reasoning
    num_reasoning: int = 0
    matcher: Matcher | None = None  # of the grammar that the reply follows
    max_new_tokens: int = 0
    image_mask: bytearray | None = None  # 1 where an id of the prompt stands for an image
    blocks: list[Block] = field(default_factory=list)  # of the prompt, ascending
    # Of the prompt's ids, for models whose positions do not follow from the index.
    positions: Any = None
    restored_from: str | None = None
    started_at: float = 0.0
    first_token_at: float | None = None

    @property
    def context(self) -> Context:
        """The state of its session."""
        return self.session.state

    @property
    def note(self) -> str:
        """The note of its request."""
        return self.command.note if isinstance(self.command, Respond) else ""

    @property
    def in_background(self) -> bool:
        """Return True if it goes on without a client."""
        return isinstance(self.command, Respond) and self.command.background

    @property
    def generates(self) -> bool:
        """Return True if it has a reply."""
        command = self.command
        return command.generates if isinstance(command, Respond) else isinstance(command, Prompt)

    @property
    def base(self) -> Context | Past:
        """The history that it continues."""
        return self.past or self.context

    @property
    def request_ids(self) -> list[str]:
        """The ids of all requests that wait for the text of this turn."""
        subscribers = [subscriber.request_id for subscriber in self.subscribers]
        return subscribers + [waiter.request_id for waiter in self.continues]

    @property
    def all_images(self) -> list[MediaInput]:
        """The images of the history and, last, this turn's."""
        return self.base.images + self.images

    def whole(self, count: int) -> int:
        """See `Schedulable`. Recurrent states are kept before a prompt's last token, from which its reply may begin again.

        They can be lent at the end of a step alone.
        """
        start = self.context.kv.length
        end = start + count
        if self.context.kv.recurrent is not None:
            ends = [length for length in self.alike.values() if length >= start + MIN_TOKENS]
            end = min(at for at in (end, self.num_prompt - 1, *ends) if at > start or at == end)
        return next((b.stop for b in self.blocks if b.start < end < b.stop), end) - start

    def waits_for(self, others: Collection[object], least: int) -> bool:
        """See `Schedulable`."""
        start = self.context.kv.length
        return any(
            stop - start >= least and start <= other.context.kv.length < stop and other in others
            for other, stop in self.alike.items()
        )

    @property
    def num_to_prefill(self) -> int:
        """Ids whose KV is missing, the last generated one not counted: that is the next decode step's."""
        return max(0, self.num_given - self.context.kv.length)

    @property
    def num_new(self) -> int:
        """Ids that the prompt adds to the history that the turn continues."""
        return self.num_prompt - (self.extension.keep if self.extension else 0)

    @property
    def num_generated(self) -> int:
        """Ids generated so far."""
        return len(self.ids) - self.num_prompt

    @property
    def num_after_next(self) -> int:
        """Tokens that it may generate after the next one, and drafts may have."""
        return max(0, self.max_new_tokens - self.num_generated - 1)

    def num_kept(self, num_ids: int) -> int:
        """Return how many of the `num_ids` of its session's log, once it is committed, were ids of this turn before."""
        return num_ids if self.reply is None else self.num_prompt + self.reply.num_kept

    @property
    def text(self) -> str:
        """The reply so far, as far as it may be shown."""
        return self.reply.text if self.reply else ""

    @property
    def num_logprobs(self) -> int | None:
        """The number of likeliest tokens asked for beside each log-probability; None if not even those are."""
        command = self.command
        return command.top_logprobs if isinstance(command, Prompt) and command.logprobs else None

    def draws(self, count: int) -> list[SamplingRow] | None:
        """Return the parameters by which its next tokens are chosen, if few logits decide on each; else None."""
        if not self.generates:
            return [SamplingRow()] * count
        plain = self.penalties is NO_PENALTIES and self.matcher is None
        if not (plain and self.num_logprobs is None and self.sampling.needs_few):
            return None
        return [self.sampling.later(place) for place in range(count)]

    def take(self, chosen: Chosen, eos_ids: Collection[int]) -> str | None:
        """Add a chosen token to the reply; return the finish reason if that ends it.

        Raises:
            InvalidRequest: the reply's grammar is too complex to go on.
        """
        command, reply, token = self.command, self.reply, chosen.token
        assert isinstance(command, Prompt)
        assert reply is not None
        if token in eos_ids and not (command.ignore_eos and self.matcher is None):
            return "stop"
        stops = token in command.stop_token_ids
        if stops and not command.include_stop_str_in_output:
            return "stop"
        self.ids.append(token)
        stops |= reply.push(token)
        self.num_reasoning += self.parser is not None and self.parser.reasons(reply.last_piece)
        stops |= self.matcher is not None and self.matcher.consume(token)
        if chosen.logprob is not None:
            self.logprobs.append(TokenLogprob(token, reply.num_decoded, chosen.logprob, chosen.top))
        if stops:
            return "stop"
        return "length" if self.num_generated >= self.max_new_tokens else None

    @property
    def sampling(self) -> SamplingRow:
        """The parameters by which its next token is chosen."""
        command = self.command
        assert isinstance(command, Prompt)
        return SamplingRow(
            command.temperature if command.top_p else 0.0,
            command.top_k,
            command.top_p,
            command.min_p,
            command.seed or 0,
            self.num_generated,
        )
