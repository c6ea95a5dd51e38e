"""The names by which requests of one conversation without a session reach the same engine.

A wrong guess costs time only: engines compare messages and texts themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ts_stateful.protocol.chat import Chat, RawPrompt, Said
from ts_stateful.protocol.requests import Media, Prompt

__all__ = ["affinity_of"]

_URL_CHARS = 256  # data that differs later leads to an engine without these images, at worst
_LEAST_CHARS = 64  # of the beginning that texts have in common


def affinity_of(prompt: Prompt, dialogue: str | None) -> tuple[str, ...]:
    """Return the name of this request, and those of requests whose answer it may continue.

    The client may have named the `dialogue`, for all. Else a request is named by its messages, and one that continues it has
    these, a reply and what follows. A text without messages is named by its first 64, 128, 256, ... characters, as many as it
    has: one that continues it has these.
    """
    if dialogue is not None:
        name = _digest([f"dialogue {dialogue}"])
        return name, name
    if not isinstance(prompt, Chat):
        ids = prompt.ids if isinstance(prompt, RawPrompt) else ()
        return _names_of_text(" ".join(map(str, ids)) or prompt.prompt)
    messages = prompt.messages
    replies = [at for at, said in enumerate(messages) if said.role == "assistant"]
    beginnings = (messages, *(messages[:at] for at in replies[-1:]))
    return tuple(_digest(_texts(some, prompt.media)) for some in beginnings)


def _names_of_text(text: str) -> tuple[str, ...]:
    if len(text) < _LEAST_CHARS:
        return ()
    bits = range(len(text).bit_length() - 1, 4, -1)  # to 32: texts have a third name, see `Submit`
    own, *shorter = (_digest(["text", text[: 1 << some]]) for some in bits)
    return own, own, *shorter


def _texts(messages: Iterable[Said], images: Iterable[Media]) -> Iterable[str]:
    urls = (image.url or "" for image in images)
    for said in messages:
        yield said.role
        for part in said.parts:
            url = next(urls) if part is None else ""
            yield f"image {len(url)} {url[:_URL_CHARS]}" if part is None else f"text {part}"


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d " % len(data) + data)
    return digest.hexdigest()
