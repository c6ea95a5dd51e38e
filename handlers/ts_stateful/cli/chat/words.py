"""Lines of a chat about a server, a session and a reply."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from ts_stateful.cli.session_table import show_time
from ts_stateful.cli.terminal import Terminal
from ts_stateful.client import ClientError, DeadlineExceeded, Reply, Server
from ts_stateful.config.sizes.quantities import show_bytes
from ts_stateful.protocol.answers import HelloAnswer, SessionInfo
from ts_stateful.protocol.errors import StatefulError

__all__ = ["ReplyTimes", "counted", "figures", "greeting", "reason", "session_facts", "waiting"]

_BAR = 10  # characters of the meter
_PLACES = {
    "device": "on the device",
    "host": "in the host's memory",
    "store": "in the store",
    "record": "computed again by the next turn",
}


@dataclass
class ReplyTimes:
    """Times of a reply, in seconds after its prompt was sent."""

    first_s: float | None = None
    last_s: float = 0.0

    def came(self, at_s: float) -> None:
        """Count a piece."""
        self.first_s = at_s if self.first_s is None else self.first_s
        self.last_s = at_s


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 turn`, `2 turns`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def greeting(url: str, hello: HelloAnswer) -> Iterator[str]:
    """Yield lines about the server."""
    limits = hello.limits
    yield f"connected to {url}: model {hello.model}, profile {hello.profile}, version {hello.version}"
    kinds = ((limits.images, "image"), (limits.audio, "clip"))
    takes = ", ".join(f"{counted(most, name)} a prompt" for most, name in kinds if most)
    yield (
        f"{limits.context_tokens:,} tokens of context; {takes or 'text only'};"
        f" a session ends after {show_time(limits.idle_s)} of rest"
    )
    if hello.chat_template is False:
        yield "the model has no chat template: it may not know who speaks"


def figures(reply: Reply, times: ReplyTimes, context_tokens: int) -> str:
    """Return the tokens and times of a reply, and how full its session is."""
    if reply.usage is None:
        return f"[{reply.finish_reason or 'interrupted'}]"
    usage = reply.usage
    parts = [
        "no text" if times.first_s is None else f"{1000 * times.first_s:.0f} ms to the first piece"
    ]
    parts.append(counted(usage.completion_tokens, "token"))
    if times.first_s is not None and times.last_s > times.first_s:
        rate = (usage.completion_tokens - 1) / (times.last_s - times.first_s)
        parts.append(f"{rate:.0f} tokens/s")
    parts.append(f"{usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} cached")
    ending = "" if reply.finish_reason == "stop" else f", {reply.finish_reason}"
    used = usage.prompt_tokens + usage.completion_tokens
    return f"[{', '.join(parts)}{ending}] {meter(used, context_tokens)}"


def meter(used: int, context_tokens: int) -> str:
    """Return how much of the context is used: `[#####-----] 2,048 of 4,096`."""
    full = min(_BAR, round(_BAR * used / context_tokens))
    return f"[{'#' * full}{'-' * (_BAR - full)}] {used:,} of {context_tokens:,}"


def session_facts(info: SessionInfo, context_tokens: int) -> Iterator[str]:
    """Yield lines about a session."""
    waiting = f", {counted(info.waiting, 'prompt')} waiting" if info.waiting else ""
    yield f"session  {info.session_id}{', a turn is running' if info.running else ''}{waiting}"
    files = ((info.images, "image"), (info.audio, "clip"))
    shown = "".join(f", {counted(count, name)}" for count, name in files if count)
    yield f"turns    {info.turns}{shown}"
    yield f"context  {meter(info.tokens, context_tokens)} tokens, {info.cached_tokens:,} cached"
    yield (
        f"states   {_PLACES.get(info.residency, info.residency)};"
        f" {show_bytes(info.device_bytes)} on the device, {show_bytes(info.host_bytes)} in the host's memory"
    )
    if info.saved is not None:
        yield f"store    {'all turns are saved' if info.saved else 'not all turns are saved yet'}"
    if info.adapter is not None:
        yield f"adapter  {info.adapter}"
    yield f"age      {show_time(info.age_s)}, last used {show_time(info.idle_s)} ago, ends {info.expires_at}"


def reason(error: Exception) -> str:
    """Return an error in one line: of a server with its code and field, of a file with its name."""
    if isinstance(error, StatefulError):
        code = f"{error.code}: " if error.code else ""
        return f"{code}{error.message}{f' ({error.field})' if error.field else ''}"
    if isinstance(error, OSError) and error.filename:
        # Of a copy the first one is the source, which a full disk does not concern.
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return f"{(is_full and error.filename2) or error.filename}: {error.strerror}"
    return str(error)


@contextlib.contextmanager
def waiting(server: Server, patience_s: float = 5.0) -> Iterator[None]:
    """Print why nothing comes, if the block takes longer and the server does not answer a `hello` either."""
    ended = threading.Event()

    def look() -> None:
        try:
            if not ended.wait(patience_s):
                server.hello(patience_s)
        except (ClientError, StatefulError) as error:
            is_silent = isinstance(error, DeadlineExceeded)
            why = "the server does not answer" if is_silent else reason(error)
            if not ended.is_set():
                Terminal(sys.stderr).line(f"waiting until --timeout: {why}")

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
