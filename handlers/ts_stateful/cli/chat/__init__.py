"""The conversation of `ts-stateful chat`: what is typed, what is shown, and the sessions between."""

from ts_stateful.cli.chat.loop import COMMANDS, NAMES, ChatLoop, ChatOptions

__all__ = ["COMMANDS", "NAMES", "ChatLoop", "ChatOptions"]
