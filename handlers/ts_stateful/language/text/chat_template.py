"""Rendering of a conversation by a chat template, and the token ids that a turn appends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import mark_control_tokens

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.conversation.history import Delta, Message
from ts_stateful.language.text.call_fields import call_fields, name_results
from ts_stateful.language.text.dialogue import Dialogue, Extension, appended, common_prefix
from ts_stateful.language.text.marked_chat import control_tokens, encode_marked
from ts_stateful.language.text.placeholders import Placeholder, Placeholders
from ts_stateful.language.text.prompt_form import NO_FORM, PromptForm
from ts_stateful.language.text.reply_parser import ReplyTemplate, functions_of, parse_reply
from ts_stateful.protocol.chat import Parsing, Said, Tool
from ts_stateful.protocol.errors import InvalidRequest

__all__ = ["ChatText"]

_CUT = "\ue0f0user\ue0f0"  # private-use characters, in the place of the first user's text
_ANCHOR_CHARS = 48
_MEND = "correct chat_template.jinja in its repository, or set handler.chatTemplate"


class ChatText:
    """The text side of one model; generated ids are kept verbatim.

    `owner` is the processor or tokenizer whose chat template is used. A text model has no `placeholders`. As in processors,
    they become their expansions before the text is tokenized (576 times `<image>` for LLaVA). Control tokens that a text spells
    out are marked, so that they are tokenized as text. `form` is what a processor writes around a rendered conversation.

    Raises:
        ConfigError: the chat template is malformed, or there are several.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        owner: Any,
        placeholders: Sequence[Placeholder] = (),
        reply_template: ReplyTemplate | None = None,
        form: PromptForm = NO_FORM,
    ) -> None:
        self._form = form
        self.reply_template = reply_template
        self._tokenizer, self._owner = tokenizer, owner
        self.has_template = getattr(owner, "chat_template", None) is not None
        self._placeholders = Placeholders(tokenizer, placeholders)
        tokens = {token for token in control_tokens(tokenizer, owner) if not form.is_word(token)}
        tokens |= {each.token for each in placeholders}
        controls = sorted(tokens, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, controls)) or "(?!)")
        self._takes_parts = self._hides_texts() or bool(placeholders)

    def _hides_texts(self) -> bool:
        """Return True if the template shows messages of parts alone; templates of text models expect one text."""
        if not self.has_template:
            return False
        try:
            return _CUT not in self._owner.apply_chat_template(
                [{"role": "user", "content": _CUT}], tokenize=False
            )
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"line {error.lineno} of the chat template: {error}; {_MEND}"
            ) from None
        except jinja2.TemplateError:
            return False
        except ValueError as error:  # there are several, and none is the default
            raise ConfigError(f"the chat template cannot be used: {error}; {_MEND}") from None

    def begin(self, system: str | None, num_images: int) -> Delta:
        """Return the opening of a session without its ids, as known before its images are loaded."""
        messages = () if system is None else (self._message("system", system),)
        return Delta(messages=messages, num_images=num_images)

    def user_message(self, dialogue: Dialogue, prompt: str, num_images: int) -> Message:
        """Return the next user message; the images of `open` come first in the first one."""
        return self._message("user", prompt, dialogue.waiting_images + num_images)

    @property
    def knows_tools(self) -> bool:
        """True if the chat template shows tools, and calls in a reply can be found."""
        template = getattr(self._owner, "chat_template", None)
        has_calls = self.reply_template is not None and self.reply_template.has_calls
        return has_calls and "tools" in str(template)

    def chat_message(self, said: Said) -> Message:
        """Return a message of a client's conversation."""
        role, parts = said.role, said.parts
        num_images = parts.count(None)
        if not self._takes_parts:
            parts = ("\n".join(part for part in parts if part is not None),)
        marked = tuple(part and mark_control_tokens(part, self._controls) for part in parts)
        text = "".join(part for part in marked if part is not None)
        usual = (None,) * num_images + (text,)
        return Message(
            role,
            text,
            num_images,
            () if marked == usual else marked,
            call_fields(said.tool_calls, said.tool_call_id),
            said.reasoning,
        )

    def committed(
        self,
        dialogue: Dialogue,
        messages: Sequence[Message],
        extension: Extension,
        reply: Message,
        reply_ids: Sequence[int],
        rest: str = "",
    ) -> Delta:
        """Return the change of the dialogue and its log by a turn, once its reply is complete: `reply_ids`, and then `rest`."""
        keep_chars = common_prefix(dialogue.rendered, extension.rendered)
        ids = [*extension.ids, *reply_ids]
        if rest:
            ids += self._encode_after(self._tokenizer.decode(ids[-_ANCHOR_CHARS:]), rest)
        return Delta(
            keep=extension.keep,
            ids=tuple(ids),
            keep_chars=keep_chars,
            rendered=extension.rendered[keep_chars:],
            messages=(*messages, reply),
            num_images=_num_images(messages) - dialogue.waiting_images,
        )

    def reply_message(self, text: str, parsing: Parsing | None, origin: str) -> Message:
        """Return the message of a reply, whose whole text is `text`."""
        if parsing is None or self.reply_template is None:
            return self._message("assistant", text)
        piece = parse_reply(self.reply_template, parsing, origin, text)
        message = self._message("assistant", piece.text)
        return message._replace(
            fields=call_fields(piece.tool_calls), reasoning=piece.reasoning, generated=text
        )

    def opening(
        self, dialogue: Dialogue, expansions: Sequence[Sequence[int]], tools: Sequence[Tool] = ()
    ) -> list[int]:
        """Return the ids with which every first prompt of this dialogue begins; empty if the template hides them.

        Raises:
            InvalidRequest: the template refuses a system prompt.
        """
        message = Message("user", _CUT, dialogue.opening_images)
        said = [*dialogue.messages, message]
        head, cut, _ = self._render(said, expansions, tools).partition(_CUT)
        return (
            self._encode_whole(self._placeholders.expand(head, expansions)) if cut and head else []
        )

    def extend(
        self,
        dialogue: Dialogue,
        log: Sequence[int],
        messages: Sequence[Message],
        expansions: Sequence[Sequence[int]],
        tools: Sequence[Tool] = (),
        instructions: str = "",
        *,
        opens_reply: bool = True,
    ) -> Extension:
        """Return the context of the log and `messages`, up to the beginning of the reply, which may call `tools`.

        `expansions` are the ids of every image of the session, the new ones last. `instructions` come before all messages.
        Where the template only appends, the whole log is kept, generated ids verbatim. Where it rewrites history, the longest
        common prefix is kept.

        Raises:
            InvalidRequest: the template or the tokenizer cannot take the text.
        """
        before = [self._message("system", instructions)] if instructions else []
        said = [*before, *dialogue.messages, *messages]
        rendered = self._render(said, expansions, tools, opens_reply=opens_reply)
        added = appended(dialogue, rendered)
        if added is not None:
            num_new = dialogue.unread_images + _num_images(messages)
            fresh = expansions[len(expansions) - num_new :]
            text = self._placeholders.expand(added, fresh)
            new = self._encode_after(dialogue.rendered + dialogue.reply, text)
            return Extension(len(log), new, rendered)
        whole = self._encode_whole(self._placeholders.expand(rendered, expansions))
        keep = common_prefix(log, whole)
        return Extension(keep, whole[keep:], rendered)

    def raw(self, prompt: str | Sequence[int]) -> Extension:
        """Return the context of a text without a template: ids, or what the tokenizer makes of it, control tokens included.

        Raises:
            InvalidRequest: it has no tokens, or one that stands for an image.
        """
        ids = self._tokenizer(prompt).input_ids if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise InvalidRequest("it is empty; send at least one character", field="prompt")
        if (found := self._placeholders.find(ids)) is not None:
            raise InvalidRequest(
                f"{found.token} stands for an image or a clip, which a text completion cannot have;"
                " use chat completions",
                field="prompt",
            )
        return Extension(0, ids, prompt if isinstance(prompt, str) else "")

    def _message(self, role: str, text: str, num_images: int = 0) -> Message:
        return Message(role, mark_control_tokens(text, self._controls), num_images)

    def _render(
        self,
        messages: list[Message],
        expansions: Sequence[Sequence[int]],
        tools: Sequence[Tool] = (),
        *,
        opens_reply: bool = True,
    ) -> str:
        shown = map(self._placeholders.of, expansions)
        if not self.has_template:
            # Without a template the texts are concatenated.
            texts = [
                "".join(next(shown).token if part is None else part for part in message.layout)
                for message in messages
            ]
            return self._formed(self._form.end.join(texts))
        said = [self._template_message(message, shown) for message in messages]
        name_results(said)
        try:
            rendered: str = self._owner.apply_chat_template(
                said,
                tools=mark_control_tokens(functions_of(tools), self._controls) or None,
                tokenize=False,
                add_generation_prompt=opens_reply,
            )
        except Exception as error:  # a template is third-party code
            by_system = messages[0].role == "system" and not any(one.fields for one in messages)
            what = "a system prompt here" if by_system else "this conversation"
            raise InvalidRequest(
                f"the model's chat template does not support {what}: {str(error)[:200]}",
                field="system" if by_system else "prompt",
            ) from None
        return self._formed(rendered)

    def _formed(self, rendered: str) -> str:
        return self._form.write(rendered, self._placeholders.end_of_last(rendered))

    def _template_message(self, message: Message, shown: Iterator[Placeholder]) -> dict[str, Any]:
        """Return a message as templates expect it; `shown` are the placeholders of its images and of those after it."""
        made = {"role": message.role, "content": self._content(message, shown)}
        if message.reasoning:
            made["reasoning_content"] = mark_control_tokens(message.reasoning, self._controls)
        if message.fields:
            made |= mark_control_tokens(json.loads(message.fields), self._controls)
        return made

    def _content(
        self, message: Message, shown: Iterator[Placeholder]
    ) -> str | list[dict[str, str]]:
        """Return parts or a text, as the template expects it. A reply that only calls tools is a text."""
        if not self._takes_parts or not (message.text or message.num_images):
            return message.text
        return [
            {"type": next(shown).part} if part is None else {"type": "text", "text": part}
            for part in message.layout
        ]

    def _encode_whole(self, rendered: str) -> list[int]:
        """Return the ids of a whole rendered conversation."""
        # As processors do, add special tokens (BOS) unless the template wrote them. A tokenizer's own template gets none.
        bos = self._tokenizer.bos_token
        written = not self._placeholders or (bos is not None and rendered.startswith(bos))
        prefix = [] if self.has_template and written else self._tokenizer("").input_ids
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
            return encode_marked(self._tokenizer, text)
        except ValueError:
            raise InvalidRequest(
                "the text contains a control token, which this model's tokenizer cannot encode as text; remove it",
                field="prompt",
            ) from None


def _num_images(messages: Sequence[Message]) -> int:
    return sum(message.num_images for message in messages)
