"""From a request to the ids of its turn."""

from __future__ import annotations

from ts_stateful.language.conversation.matching import branch
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.network.load import Model
from ts_stateful.language.text.chat_template import Extension
from ts_stateful.language.text.reply import ReplyText
from ts_stateful.protocol.errors import ContextTooLong, TurnGap
from ts_stateful.protocol.requests import Chat, Open, Prompt

__all__ = ["check_length", "check_number", "check_window", "extend", "resume_reply"]

_CHARS_PER_TOKEN = 32  # on average, at the very most


def resume_reply(sequence: Sequence) -> str | None:
    """Begin the reply with the ids that an engine that died had chosen; return the finish reason if they end it."""
    reply = sequence.reply
    stopped = None
    for token in sequence.replay if reply is not None else ():
        assert reply is not None
        sequence.ids.append(token)
        if reply.push(token):
            stopped = "stop"
        elif sequence.num_generated >= sequence.max_new_tokens:
            stopped = "length"
    sequence.num_given = len(sequence.ids)
    return stopped


def extend(model: Model, sequence: Sequence) -> Extension:
    """Return the session's log with this turn's prompt.

    Raises:
        TurnGap: the prompt is not the next turn.
        InvalidRequest: the template or the tokenizer cannot take it.
    """
    context, command, text = sequence.context, sequence.command, model.text
    if not isinstance(command, Prompt):
        expansions = [image.ids for image in sequence.all_images]
        return Extension(0, text.opening(context.dialogue, expansions), "")
    sequence.number = len(sequence.session.turns) + 1
    check_number(command.turn, sequence.number)
    if isinstance(command, Chat):
        _branch(model, sequence, command)
    else:
        num_images = len(sequence.images)
        sequence.messages = (text.user_message(context.dialogue, command.prompt, num_images),)
    sequence.reply = ReplyText(model.tokenizer.backend_tokenizer, command.stop_strings)
    expansions = [image.ids for image in sequence.all_images]
    base = sequence.base
    return text.extend(base.dialogue, base.log, sequence.messages, expansions)


def _branch(model: Model, sequence: Sequence, chat: Chat) -> None:
    """Reduce the client's conversation to what the session does not have. The session changes when the turn commits."""
    context, turns = sequence.context, sequence.session.turns
    sent = [model.text.told(said.role, said.parts) for said in chat.messages]
    found = branch(context, turns, sent, sequence.images)
    sequence.messages, sequence.images = found.messages, found.images
    if found.num_turns is None:
        sequence.past, sequence.number = context.blank(), 1
    elif found.num_turns < len(turns):
        sequence.past = context.after(turns[: found.num_turns])
        sequence.number = found.num_turns + 1


def check_window(sequence: Sequence, window: int) -> None:
    """Bound the reply by the tokens that are left of the context window; raise `ContextTooLong` if there are none."""
    need = sequence.num_prompt
    generates = isinstance(sequence.command, Prompt)
    if need + generates > window:
        left = max(0, window - len(sequence.context.log) - 1)
        opening = "images" if sequence.images else "system"
        raise ContextTooLong(
            f"history, prompt and images are {need} tokens and the context window is {window}; "
            f"{left} tokens are left for a prompt",
            field="prompt" if generates else opening,
        )
    if isinstance(sequence.command, Prompt):
        sequence.max_new_tokens = min(sequence.command.max_new_tokens, window - need)


def check_length(command: Open | Prompt, window: int) -> None:
    """Refuse a text that cannot fit, before a tokenizer spends time on it."""
    if isinstance(command, Prompt):
        field, num_chars = "prompt", command.num_chars
    else:
        field, num_chars = "system", len(command.system or "")
    if num_chars > window * _CHARS_PER_TOKEN:
        raise ContextTooLong(
            f"{num_chars} characters cannot fit a context window of {window} tokens",
            field=field,
        )


def check_number(asked: int | None, number: int) -> None:
    """Raise `TurnGap` unless a prompt's `turn` is the next one."""
    if asked is not None and asked != number:
        raise TurnGap(f"turn {asked} was asked for, but turn {number} is next", field="turn")
