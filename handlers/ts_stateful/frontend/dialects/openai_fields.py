"""The fields of OpenAI's clients without a meaning here: those that ask for nothing, those that are ignored, and the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from ts_stateful.protocol.errors import InvalidRequest

__all__ = [
    "BODY",
    "IMAGE_URL",
    "MESSAGE",
    "PART",
    "STREAM_OPTIONS",
    "TOOL",
    "FieldFilter",
    "FieldTable",
    "each_of",
]

_MAX_IGNORED = 32  # names in an answer's header
_MAX_NAME = 64


class FieldTable(NamedTuple):
    """The fields of one object besides the supported ones, with the values that ask for nothing.

    With another value those in `neutral` would change an answer, and are refused. Those in `idle`, and fields in no table, are
    ignored. Those that are `repeated` from our own answers need no name.
    """

    neutral: Mapping[str, tuple[object, ...]] = {}
    idle: Mapping[str, tuple[object, ...]] = {}
    repeated: Collection[str] = ()


BODY: Final = FieldTable(
    {
        "audio": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "modalities": (["text"],),
        "prediction": (),
        "reasoning_effort": ("none",),
        "response_format": ({"type": "text"},),
        "top_logprobs": (0,),
        "verbosity": ("medium",),
        "web_search_options": (),
        # Of vLLM and SGLang.
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "allowed_token_ids": (),
        "bad_words": ([],),
        "best_of": (1,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "continue_final_message": (False,),
        "documents": ([],),
        "echo": (False,),
        "length_penalty": (1,),
        "logits_processors": ([],),
        "lora_path": (),
        "min_tokens": (0,),
        "mm_processor_kwargs": ({},),
        "no_repeat_ngram_size": (0,),
        "prompt_logprobs": (False,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "suffix": ("",),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
    },
    {"service_tier": ("auto", "default"), "store": (False,)},
)
MESSAGE: Final = FieldTable(
    {"audio": (), "function_call": (), "refusal": ("",)}, {"annotations": ([],)}
)
PART: Final = FieldTable(repeated=("type",))
IMAGE_URL: Final = FieldTable(idle={"detail": ("auto",)})
STREAM_OPTIONS: Final = FieldTable(idle={"include_obfuscation": (False,)})
TOOL: Final = FieldTable(repeated=("index",))  # of a call in a stream


class FieldFilter:
    """Takes the supported fields out of objects, and collects the names of those that are `ignored`; `strict` refuses them."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._ignored: dict[str, None] = {}

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return the names of the fields that were ignored, each once: `user`, `messages[].id`."""
        return tuple(self._ignored)

    def supported(
        self, fields: Mapping[str, Any], names: Collection[str], table: FieldTable, place: str = ""
    ) -> dict[str, Any]:
        """Return the fields with these names; `place` is the path of the object, as errors name it.

        Raises:
            InvalidRequest: one asks for something that this server does not do, or has no effect and must not be ignored.
        """
        wanted = {}
        for name, value in fields.items():
            neutral = table.neutral.get(name, ())
            if value is None or value in neutral or value in table.idle.get(name, ()):
                continue
            if name in names:
                wanted[name] = value
            elif name in table.neutral:
                raise InvalidRequest(_unsupported(neutral), field=f"{place}{name}")
            elif name not in table.repeated:
                self.ignore(re.sub(r"\[\d+\]", "[]", place) + name, f"{place}{name}")
        return wanted

    def ignore(self, name: str, field: str) -> None:
        """Note a field without an effect.

        Raises:
            InvalidRequest: the filter is strict.
        """
        if self._strict:
            raise InvalidRequest(
                "it has no effect here, and handler.strictRequests refuses such fields; leave it out",
                field=field[: 2 * _MAX_NAME],
            )
        if len(self._ignored) < _MAX_IGNORED:
            shown = "".join(
                c if c.isascii() and (c.isalnum() or c in "_-.[]") else "?" for c in name
            )
            self._ignored[shown[:_MAX_NAME]] = None


def each_of(items: object, place: str, read: Callable[[dict[str, Any], str], object]) -> object:
    """Return the results of `read` for the objects of a list and their paths. What has a wrong type stays."""
    if not isinstance(items, list):
        return items
    return [
        read(item, f"{place}[{index}].") if isinstance(item, dict) else item
        for index, item in enumerate(items)
    ]


def _unsupported(neutral: tuple[object, ...]) -> str:
    if neutral and isinstance(neutral[0], str | int | bool):
        shown = str(neutral[0]).lower() if isinstance(neutral[0], bool) else repr(neutral[0])
        return f"this server supports only {shown}; send that, or leave it out"
    return "this server does not support it; leave it out"
