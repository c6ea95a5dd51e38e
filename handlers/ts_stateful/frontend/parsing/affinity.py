"""The names by which requests of one conversation without a session reach the same engine.

A wrong guess costs time only: engines compare the messages themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ts_stateful.protocol.chat import Chat, Said
from ts_stateful.protocol.requests import Media

__all__ = ["affinity_of"]

_URL_CHARS = 256  # data that differs later leads to an engine without these images, at worst


def affinity_of(chat: Chat, dialogue: str | None) -> tuple[str, ...]:
    """Return the name of this request, and that of the request whose answer it continues, if it does.

    The client may have named the `dialogue`, for both. Else a request is named by its messages, and one that continues it has
    these, a reply and what follows.
    """
    if dialogue is not None:
        name = _digest([f"dialogue {dialogue}"])
        return name, name
    replies = [at for at, said in enumerate(chat.messages) if said.role == "assistant"]
    beginnings = (chat.messages, *(chat.messages[:at] for at in replies[-1:]))
    return tuple(_digest(_texts(messages, chat.media)) for messages in beginnings)


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
