"""The arguments of the application for Ray Serve."""

from __future__ import annotations

import pytest

from ts_stateful.asgi.ray_serve.settings import RayArguments
from ts_stateful.config.schema import ConfigError


def test_the_command_line_gives_texts() -> None:
    """Numbers are read from them."""
    read = RayArguments.of({"model": "chat.mar", "max_replicas": "4", "turns_per_replica": "8"})
    assert (read.model, read.max_replicas, read.turns_per_replica) == ("chat.mar", 4, 8)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "model"),
        ({"model": "chat.mar", "replicas": 2}, "replicas"),
        ({"model": "chat.mar", "max_replicas": 0}, ">= 1"),
        ({"model": "chat.mar", "min_replicas": 2}, "raise max_replicas"),
    ],
)
def test_a_wrong_argument_is_refused(given: dict[str, object], said: str) -> None:
    """The message names it."""
    with pytest.raises(ConfigError, match=said):
        RayArguments.of(given)
