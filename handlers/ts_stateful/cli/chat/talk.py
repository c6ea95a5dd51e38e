"""One session of a chat, with what was said in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ts_stateful.client import Session
from ts_stateful.protocol.answers import Timing, Usage

__all__ = ["Exchange", "Talk"]


@dataclass(frozen=True)
class Exchange:
    """A committed turn. `files` are the names of its images and clips; the rest is the end of its reply, where it is known."""

    prompt: str
    reply: str
    files: tuple[str, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    timing: Timing | None = None


@dataclass
class Talk:
    """A session and its turns by number, without those from before the chat."""

    session: Session
    system: str | None = None
    exchanges: dict[int, Exchange] = field(default_factory=dict)

    def forked(self, session: Session) -> Talk:
        """Return the same conversation in another session."""
        return Talk(session, self.system, dict(self.exchanges))

    def forget_after(self, turn: int) -> None:
        """Drop the turns after turn `turn`."""
        self.exchanges = {number: one for number, one in self.exchanges.items() if number <= turn}

    def markdown(self) -> str:
        """Write the conversation as Markdown."""
        parts = [] if self.system is None else [f"**System:** {self.system}"]
        if self.exchanges and min(self.exchanges) > 1:
            parts.append(f"*(turns 1 to {min(self.exchanges) - 1} are from before this chat)*")
        for number, one in sorted(self.exchanges.items()):
            parts.append(f"## {number}")
            parts += [f"*{name}*" for name in one.files]
            parts += [f"**You:** {one.prompt}", f"**Model:** {one.reply}"]
        return "\n\n".join(parts) + "\n"
