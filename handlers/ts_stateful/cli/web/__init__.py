"""The chat page of `ts-stateful chat --web`. Needs the extra `web`."""
