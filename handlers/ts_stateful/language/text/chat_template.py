"""Rendering of a conversation by a chat template, and the token ids that a turn appends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jinja2
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.sessions.session import Delta, Message

__all__ = ["ChatText", "Dialogue", "Extension", "common_prefix"]

_CUT = "\ue0f0user\ue0f0"  # private-use characters, in the place of the first user's text
_ANCHOR_CHARS = 48
T = TypeVar("T")


class Dialogue:
    """The text of a session: its messages, and the text rendered for its last turn, whose ids are in the log."""

    def __init__(self, opening: Delta) -> None:
        self.messages = list(opening.messages)
        self.opening_images = opening.num_images  # the first user message will begin with them
        self.rendered = ""  # up to the beginning of the last reply
        self.num_turns = 0

    @property
    def reply(self) -> str:
        """The last reply, its control tokens marked; empty before the first turn."""
        return self.messages[-1].text if self.num_turns else ""

    @property
    def waiting_images(self) -> int:
        """The images of `open`, until a user message has begun with them."""
        return 0 if self.num_turns else self.opening_images

    def apply(self, turn: Delta) -> None:
        """Apply the next turn."""
        self.messages += turn.messages
        self.rendered = self.rendered[: turn.keep_chars] + turn.rendered
        self.num_turns += 1


class Extension(NamedTuple):
    """The change from a log to a turn's context: the first `keep` ids stay, `ids` follow; `rendered` is its text."""

    keep: int
    ids: list[int]
    rendered: str


class ChatText:
    """The text side of one model; generated ids are kept verbatim.

    `owner` is the processor or tokenizer whose chat template is used. `image_token` is the placeholder of an image in rendered
    text, None for a text model. After tokenization it becomes the ids of its expansion (576 times `<image>` for LLaVA), which
    processors do before it. Control tokens that a text spells out are marked, so that they are tokenized as text.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, owner: Any, image_token: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._owner = owner
        self._has_template = getattr(owner, "chat_template", None) is not None
        self._image_token = image_token
        self._image_token_id = (
            None if image_token is None else tokenizer.convert_tokens_to_ids(image_token)
        )
        tokens = [added.content for added in tokenizer.added_tokens_decoder.values()]
        unknown = tokenizer.unk_token
        if unknown in tokens and _is_made_from_text(tokenizer, unknown):
            tokens.remove(unknown)
        controls = sorted((t for t in tokens if not t.isspace()), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, controls)) or "(?!)")

    def begin(self, system: str | None, num_images: int) -> Delta:
        """Return the opening of a session without its ids, as known before its images are loaded."""
        messages = () if system is None else (self._message("system", system),)
        return Delta(messages=messages, num_images=num_images)

    def user_message(self, dialogue: Dialogue, prompt: str, num_images: int) -> Message:
        """Return the next user message; the images of `open` come first in the first one."""
        return self._message("user", prompt, dialogue.waiting_images + num_images)

    def chat_message(self, role: str, parts: Sequence[str | None]) -> Message:
        """Return a message of a client's conversation: texts, and a None for each image."""
        num_images = parts.count(None)
        if self._image_token is None:  # templates of text models expect one text
            parts = ("\n".join(part for part in parts if part is not None),)
        marked = tuple(part and mark_control_tokens(part, self._controls) for part in parts)
        text = "".join(part for part in marked if part is not None)
        usual = (None,) * num_images + (text,)
        return Message(role, text, num_images, () if marked == usual else marked)

    def committed(
        self,
        dialogue: Dialogue,
        messages: Sequence[Message],
        extension: Extension,
        reply: str,
        reply_ids: Sequence[int],
    ) -> Delta:
        """Return the change of the dialogue and its log by a turn, once its reply is complete."""
        keep_chars = common_prefix(dialogue.rendered, extension.rendered)
        return Delta(
            keep=extension.keep,
            ids=(*extension.ids, *reply_ids),
            keep_chars=keep_chars,
            rendered=extension.rendered[keep_chars:],
            messages=(*messages, self._message("assistant", reply)),
            num_images=_num_images(messages) - dialogue.waiting_images,
        )

    def opening(self, dialogue: Dialogue, expansions: Sequence[Sequence[int]]) -> list[int]:
        """Return the ids with which every first prompt of this dialogue begins; empty if the template hides them.

        Raises:
            InvalidRequest: the template refuses a system prompt.
        """
        message = Message("user", _CUT, dialogue.opening_images)
        head, cut, _ = self._render([*dialogue.messages, message]).partition(_CUT)
        return self._splice(self._encode_whole(head), expansions) if cut and head else []

    def extend(
        self,
        dialogue: Dialogue,
        log: Sequence[int],
        messages: Sequence[Message],
        expansions: Sequence[Sequence[int]],
    ) -> Extension:
        """Return the context of the log and `messages`, up to the beginning of the reply.

        `expansions` are the ids of every image of the session, the new ones last. Where the template only appends, the whole
        log is kept, generated ids verbatim. Where it rewrites history, the longest common prefix is kept.

        Raises:
            InvalidRequest: the template or the tokenizer cannot take the text.
        """
        rendered = self._render([*dialogue.messages, *messages])
        appended = _appended(dialogue, rendered)
        if appended is not None:
            new = self._encode_after(dialogue.rendered + dialogue.reply, appended)
            fresh = expansions[len(expansions) - _num_images(messages) :]
            return Extension(len(log), self._splice(new, fresh), rendered)
        whole = self._splice(self._encode_whole(rendered), expansions)
        keep = common_prefix(log, whole)
        return Extension(keep, whole[keep:], rendered)

    def raw(self, text: str) -> Extension:
        """Return the context of a text without a template, read by the tokenizer as it is, control tokens included.

        Raises:
            InvalidRequest: it has no tokens, or one that stands for an image.
        """
        ids = self._tokenizer(text).input_ids
        if not ids:
            raise InvalidRequest("it is empty; send at least one character", field="prompt")
        if self._image_token_id in ids:
            raise InvalidRequest(
                f"{self._image_token} stands for an image, which a text completion cannot have; use chat completions",
                field="prompt",
            )
        return Extension(0, ids, text)

    def _message(self, role: str, text: str, num_images: int = 0) -> Message:
        return Message(role, mark_control_tokens(text, self._controls), num_images)

    def _render(self, messages: list[Message]) -> str:
        if not self._has_template:
            # Without a template the texts are concatenated.
            image = self._image_token or ""
            return "".join(image if part is None else part for m in messages for part in m.layout)
        try:
            rendered: str = self._owner.apply_chat_template(
                [{"role": m.role, "content": self._content(m)} for m in messages],
                tokenize=False,
                add_generation_prompt=True,
            )
        except jinja2.TemplateError:
            by_system = messages[0].role == "system"
            raise InvalidRequest(
                "the model's chat template does not support "
                + ("a system prompt here" if by_system else "this conversation"),
                field="system" if by_system else "prompt",
            ) from None
        return rendered

    def _content(self, message: Message) -> str | list[dict[str, str]]:
        """Return a message as templates expect it: parts for a vision-language model, plain text for a text model."""
        if self._image_token is None:
            return message.text
        return [
            {"type": "image"} if part is None else {"type": "text", "text": part}
            for part in message.layout
        ]

    def _encode_whole(self, rendered: str) -> list[int]:
        """Return the ids of a whole rendered conversation."""
        # As processors do, add special tokens (BOS) unless the template wrote them. A tokenizer's own template gets none.
        bos = self._tokenizer.bos_token
        written = self._image_token is None or (bos is not None and rendered.startswith(bos))
        prefix = [] if self._has_template and written else self._tokenizer("").input_ids
        return [*prefix, *self._encode(rendered)]

    def _encode_after(self, before: str, text: str) -> list[int]:
        """Return the ids of `text` as it follows `before`: tokenizers treat the beginning of a text differently."""
        anchor = self._controls.split(before[-_ANCHOR_CHARS:])[-1]
        anchor_ids, both = self._encode(anchor), self._encode(anchor + text)
        if both[: len(anchor_ids)] == anchor_ids:
            return both[len(anchor_ids) :]
        # A token would span the border, but generated ids are kept as they are.
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        try:
            ids: list[int] = encode_marked_chat(self._tokenizer, text)
        except ValueError:
            raise InvalidRequest(
                "the text contains a control token, which this model's tokenizer cannot encode as text; remove it",
                field="prompt",
            ) from None
        return ids

    def _splice(self, ids: list[int], expansions: Sequence[Sequence[int]]) -> list[int]:
        if not expansions:
            return ids
        remaining = iter(expansions)
        spliced: list[int] = []
        for token_id in ids:
            if token_id == self._image_token_id:
                spliced += next(remaining, [token_id])
            else:
                spliced.append(token_id)
        return spliced


def _is_made_from_text(tokenizer: PreTrainedTokenizerFast, token: str) -> bool:
    """Return True for a token that stands for any unknown text, and so also for its own name: it controls nothing."""
    marked = mark_control_tokens(token, re.compile(re.escape(token)))
    try:
        encode_marked_chat(tokenizer, marked)
    except ValueError:
        return True
    return False


def _num_images(messages: Sequence[Message]) -> int:
    return sum(message.num_images for message in messages)


def _appended(dialogue: Dialogue, rendered: str) -> str | None:
    """Return the text that a template put after the last reply, or None if it changed what came before.

    White space around the reply does not count. Many templates trim it, or put a blank before it that tokenizers merge into the
    reply's first token.
    """
    if dialogue.num_turns == 0 or not rendered.startswith(dialogue.rendered):
        return None
    tail, reply = rendered[len(dialogue.rendered) :], dialogue.reply
    if tail.startswith(reply):
        return tail[len(reply) :]
    tail, core = tail.lstrip(), reply.strip()
    if not tail.startswith(core):
        return None
    blank = reply[len(reply.rstrip()) :]
    return tail[len(core) :].removeprefix(blank)


def common_prefix(a: Sequence[T], b: Sequence[T]) -> int:
    """Return the number of ids or characters that `a` and `b` have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is a hundred times faster than items one by one
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
