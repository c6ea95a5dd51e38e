"""From a request to the ids of its turn.

Owns what of a turn is known before it runs: its place in the session, its messages and ids, how long its reply may get, and
what of it an engine that died had chosen already. Knows nothing of scheduling or tensors.
"""

from __future__ import annotations

from ts_stateful.language.conversation.matching import branch
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.network.load import Model
from ts_stateful.language.text.chat_template import Extension
from ts_stateful.language.text.reply import ReplyText
from ts_stateful.protocol.errors import ContextTooLong, TurnGap
from ts_stateful.protocol.requests import Chat, Open, Prompt

__all__ = ["check_length", "check_number", "check_window", "extend", "take_up"]

_CHARS_PER_TOKEN = 32  # on average, at the very most


def take_up(sequence: Sequence) -> str | None:
    """Takes the ids that were chosen before as they are; returns why the reply ends with them, if it does."""
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
    """What the session's log becomes with this turn's prompt.

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
    """Leaves of a told conversation what the session does not hold. Until it commits, the session stands where it is."""
    context, turns = sequence.context, sequence.session.turns
    told = [model.text.told(said.role, said.parts) for said in chat.messages]
    found = branch(context, turns, told, sequence.images)
    sequence.messages, sequence.images = found.messages, found.images
    if found.num_turns is None:
        sequence.past, sequence.number = context.blank(), 1
    elif found.num_turns < len(turns):
        sequence.past = context.after(turns[: found.num_turns])
        sequence.number = found.num_turns + 1


def check_window(sequence: Sequence, window: int) -> None:
    """Bounds the reply by what is left of a context window of so many tokens; raises `ContextTooLong` if that is nothing."""
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
    """Refuses a text that cannot fit before it costs a tokenizer's time."""
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
    """Raises `TurnGap` unless a prompt's own `turn` is the one that comes next."""
    if asked is not None and asked != number:
        raise TurnGap(f"turn {asked} was asked for, but turn {number} is next", field="turn")
