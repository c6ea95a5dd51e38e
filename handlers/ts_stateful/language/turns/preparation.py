"""From a request to the ids of its turn."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items

from ts_stateful.engine.core import EngineCore
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Message
from ts_stateful.language.conversation.matching import branch
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.kv.spans import beginning_of
from ts_stateful.language.network.load import Model
from ts_stateful.language.text.dialogue import Extension
from ts_stateful.language.text.reply import ReplyText
from ts_stateful.language.text.reply_parser import ReplyParser
from ts_stateful.language.turns.implicit_sessions import ImplicitSessions
from ts_stateful.language.turns.prefix_sharing import PrefixSharing
from ts_stateful.protocol.chat import Chat, Parsing, RawPrompt, Respond
from ts_stateful.protocol.errors import ContextTooLong, InvalidRequest, OutOfMemory, TurnGap
from ts_stateful.protocol.requests import Open, Prompt

__all__ = ["Preparation", "check_command", "check_number", "resume_reply"]

_CHARS_PER_TOKEN = 32  # on average, at the very most


class Preparation:
    """Gives turns of one engine their ids, their room and the KV states that they can reuse."""

    def __init__(self, core: EngineCore[Context], model: Model, implicit: ImplicitSessions) -> None:
        self.prefixes = PrefixSharing(model, core.shared, core.table)
        self._implicit = implicit
        self._table = core.table
        self._model = model

    def prepare(self, sequence: Sequence) -> None:
        """Prepare a turn to run.

        Raises:
            TurnGap: the prompt is not the next turn.
            ContextTooLong: it does not fit the context window.
            OutOfMemory: it does not fit the memory beside the turns in progress.
            InvalidRequest: the template or the tokenizer cannot take it.
        """
        extension = self._extend(sequence)
        sequence.extension = extension
        sequence.ids = sequence.base.log[: extension.keep] + extension.ids
        sequence.num_prompt = len(sequence.ids)
        _check_window(sequence, self._model.context_tokens)
        if isinstance(sequence.command, Prompt):
            sequence.penalties = self._model.penalties.row(sequence.command, sequence.num_prompt)
        sequence.blocks = self._model.forward.prompt_blocks(sequence.num_prompt)
        if self._model.encoder is not None and sequence.all_images:
            sequence.image_mask = self._model.encoder.mask(sequence.ids, sequence.all_images)
            sequence.blocks += self._model.encoder.blocks(sequence.image_mask)
        if isinstance(sequence.command, RawPrompt):
            self._implicit.take(sequence)  # or it might be dropped to make room
        self._make_room(sequence)
        context = sequence.context
        sequence.restored_from = context.to_device()
        lent = self._implicit.lend(sequence)
        known = max(extension.keep, lent, self.prefixes.lend(sequence))
        if sequence.past is not None:
            known = max(lent, self._implicit.valid(sequence))
        self._drop_states_of_others(sequence)
        # The last id is always computed: its logits choose the first token.
        keep = max(0, min(known, context.kv.length, sequence.num_prompt - 1))
        sequence.keep = beginning_of(sequence.blocks, keep)
        context.cut(sequence.keep)
        sequence.cached = context.kv.length
        if context.kv.recurrent is not None:
            # The session goes back to here if the turn fails or is written again.
            context.kv.recurrent.keep(context.kv.length)

    def _drop_states_of_others(self, sequence: Sequence) -> None:
        """Drop states that depend on other images than those of the turn."""
        encoder, kv = self._model.encoder, sequence.context.kv
        shown = encoder.key_of(sequence.all_images, sequence.image_mask) if encoder else None
        if kv.images != shown:
            sequence.context.cut(0)
        kv.images = shown

    def _extend(self, sequence: Sequence) -> Extension:
        """Return the session's log with this turn's prompt."""
        command, model, text = sequence.command, self._model, self._model.text
        if not isinstance(command, Prompt):
            expansions = [image.ids for image in sequence.all_images]
            return Extension(0, text.opening(sequence.context.dialogue, expansions), "")
        sequence.reply = ReplyText(
            model.tokenizer.backend_tokenizer,
            command.stop_strings,
            includes_stop=command.include_stop_str_in_output,
            shows_special=self._parses(command),
        )
        messages = command.messages if isinstance(command, Chat) else ()
        sent = list(map(text.chat_message, messages))
        resumes = sequence.ephemeral and sequence.creates_session
        if sent and resumes:
            self._implicit.resume(sequence, sent)
        sequence.number = len(sequence.context.turns) + 1
        check_number(command.turn, sequence.number)
        if isinstance(command, RawPrompt):
            return text.raw(command.ids or command.prompt)
        if isinstance(command, Respond) and not resumes:
            sequence.messages = _with_waiting_images(sequence, sent)
        elif sent:
            _branch(sequence, sent)
        else:
            dialogue, num_images = sequence.context.dialogue, len(sequence.images)
            sequence.messages = (text.user_message(dialogue, command.prompt, num_images),)
        return self._appended(sequence, command)

    def _appended(self, sequence: Sequence, command: Prompt) -> Extension:
        """Return the log of the history that the turn continues, with its messages."""
        text, base = self._model.text, sequence.base
        if sequence.generates and not (sequence.messages or base.dialogue.messages):
            raise InvalidRequest("there is nothing to answer; send a message", field="prompt")
        expansions = [image.ids for image in sequence.all_images]
        if not sequence.generates and (base.dialogue.rendered or not sequence.messages):
            # After a reply, the next turn reads these messages: its ids follow the reply's, as they were generated.
            return Extension(len(base.log), [], "")
        tools = command.tools if isinstance(command, Chat) else ()
        instructions = command.instructions if isinstance(command, Respond) else ""
        extension = text.extend(
            base.dialogue,
            base.log,
            sequence.messages,
            expansions,
            tools,
            instructions,
            opens_reply=sequence.generates,
        )
        if text.reply_template is not None and isinstance(command, Chat) and self._parses(command):
            has_form = command.calls is not None or command.response_format is not None
            # A grammar leaves no room for what the template has begun, such as reasoning.
            prefix = "" if has_form else text.reply_template.prefix_of(extension.rendered)
            sequence.parsing = Parsing(prefix, tools, has_form)
            if text.reply_template.has_reasoning:
                sequence.parser = ReplyParser(
                    text.reply_template, sequence.parsing, sequence.origin
                )
        return extension

    def _parses(self, command: Prompt) -> bool:
        template = self._model.text.reply_template
        if template is None or not isinstance(command, Chat) or not command.parses:
            return False
        may_call = bool(command.tools) and template.call_marks is not None
        return command.response_format is None or may_call

    def _make_room(self, sequence: Sequence) -> None:
        """Reserve the memory that the turn may need, or the turns in progress would exceed the budget together."""
        context = sequence.context
        num_tokens = sequence.num_prompt + sequence.max_new_tokens
        needed = context.kv.most_bytes(num_tokens)
        unseen = self._model.encoder.unseen(sequence.all_images) if self._model.encoder else {}
        missing = max(0, needed - context.device_bytes) + sum(unseen.values())
        if not self._table.make_room(missing):
            raise OutOfMemory(
                f"the turn does not fit deviceCacheBytes beside the turns in progress ({missing:,} bytes are missing);"
                " try again later, or lower max_new_tokens",
                retry_after_s=1.0,
            )
        context.reserved, context.unseen = needed, unseen


def resume_reply(sequence: Sequence, eos_ids: Collection[int]) -> str | None:
    """Begin the reply with the tokens that an engine that died had chosen; return the finish reason if they end it."""
    reason = None
    for chosen in sequence.replay if isinstance(sequence.command, Prompt) else ():
        reason = reason or sequence.take(chosen, eos_ids)
    sequence.num_given = len(sequence.ids)
    return reason


def _with_waiting_images(sequence: Sequence, sent: Items[Message]) -> tuple[Message, ...]:
    """Put the images of the session's opening, if no prompt has shown them, before the first user's message of a turn."""
    waiting = sequence.base.dialogue.waiting_images
    if not waiting:
        return tuple(sent)
    first = next((at for at, said in enumerate(sent) if said.role != "system"), None)
    if first is None or not sequence.generates:
        raise InvalidRequest(
            "the session was opened with images; send a prompt first", field="input"
        )
    return (*sent[:first], sent[first].after_images(waiting), *sent[first + 1 :])


def _branch(sequence: Sequence, sent: Items[Message]) -> None:
    """Reduce the client's conversation to what the session does not have. The session changes when the turn commits."""
    context = sequence.context
    found = branch(context, sent, sequence.images)
    sequence.messages, sequence.images = found.messages, found.images
    if found.num_turns is None:
        sequence.past, sequence.number = context.blank(), 1
    elif found.num_turns < len(context.turns):
        sequence.past = context.after(context.turns[: found.num_turns])
        sequence.number = found.num_turns + 1


def _check_window(sequence: Sequence, window: int) -> None:
    """Bound the reply by the tokens that are left of the context window; raise `ContextTooLong` if there are none."""
    need = sequence.num_prompt
    generates = sequence.generates
    if need + generates > window:
        left = max(0, window - len(sequence.context.log) - 1)
        opening = "images" if sequence.images else "system"
        raise ContextTooLong(
            f"history, prompt and images are {need} tokens and the context window is {window}; "
            f"{left} tokens are left for a prompt",
            field="prompt" if isinstance(sequence.command, Prompt) else opening,
        )
    if generates and isinstance(sequence.command, Prompt):
        sequence.max_new_tokens = min(sequence.command.max_new_tokens, window - need)


def check_command(command: Open | Prompt, model: Model) -> None:
    """Refuse token ids that the model lacks, and a text that cannot fit before a tokenizer spends time on it."""
    window = model.context_tokens
    if command.adapter is not None and command.adapter not in model.adapters.names:
        known = ", ".join(model.adapters.names) or "none"
        raise InvalidRequest(
            f"there is no adapter {command.adapter!r}; this server has {known}", field="adapter"
        )
    if isinstance(command, Prompt):
        field, num_chars = "prompt", command.num_chars
        vocab_size = model.forward.vocab_size
        _check_ids(command.stop_token_ids, "stop_token_ids", vocab_size)
        _check_ids(command.logit_bias, "logit_bias", vocab_size)
        if isinstance(command, RawPrompt):
            _check_ids(command.ids, "prompt", vocab_size)
        if isinstance(command, Chat) and command.tools and not model.text.knows_tools:
            raise InvalidRequest(
                "this model cannot call tools: it has no chat template that shows them and no response template",
                field="tools",
            )
    else:
        field, num_chars = "system", len(command.system or "")
    if num_chars > window * _CHARS_PER_TOKEN:
        raise ContextTooLong(
            f"{num_chars} characters cannot fit a context window of {window} tokens",
            field=field,
        )


def _check_ids(ids: Collection[int], field: str, vocab_size: int) -> None:
    if ids and max(ids) >= vocab_size:
        raise InvalidRequest(
            f"there is no token {max(ids)}: this model's ids are below {vocab_size}", field=field
        )


def check_number(asked: int | None, number: int) -> None:
    """Raise `TurnGap` unless a prompt's `turn` is the next one."""
    if asked is not None and asked != number:
        raise TurnGap(f"turn {asked} was asked for, but turn {number} is next", field="turn")
