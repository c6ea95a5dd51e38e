"""Rules about the folders of LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ts_stateful.config.adapters import read_adapter
from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.given_model import expand_home
from ts_stateful.config.schema import ConfigError, HandlerConfig

__all__ = ["check_adapters"]


def check_adapters(handler: HandlerConfig, folder: Path) -> Iterator[Finding]:
    """Find adapters that the engine would refuse; relative paths are looked for in `folder`, that of the configuration."""
    for name, value in handler.adapters.items():
        key = f"handler.adapters: {name}"
        place = folder / expand_home(value)
        if not place.is_dir():
            yield warning(
                key,
                f"{value} is not a folder here",
                "ignore this if it is in the archive (`ts-stateful pack --files`), or where the server runs",
            )
            continue
        try:
            read_adapter(name, place)
        except ConfigError as reason:
            yield error(
                key,
                str(reason).removeprefix(f"{key}: "),
                "docs/serve.md has what an adapter may change",
            )
