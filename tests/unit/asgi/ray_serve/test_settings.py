"""The arguments of the application for Ray Serve."""

from __future__ import annotations

import pytest

from ts_stateful.asgi.model import header_names
from ts_stateful.asgi.ray_serve.settings import ROUTED_BY, RayArguments, check_replica
from ts_stateful.config.schema import ConfigError, load_config


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


_NAMES = header_names({})
_STORED = load_config({"handler": {"model": "model", "store": {"url": "redis://store"}}})


@pytest.mark.parametrize("header", ["ts_request_sequence_id", "TS-Request-Sequence-Id"])
def test_the_header_has_any_spelling(header: str) -> None:
    """As Ray Serve reads it."""
    check_replica(_STORED, _NAMES, {ROUTED_BY: header})


@pytest.mark.parametrize("environ", [{}, {ROUTED_BY: "x-session-id"}])
def test_another_header_is_refused(environ: dict[str, str]) -> None:
    """The message has the right one."""
    with pytest.raises(ConfigError, match="set it to ts_request_sequence_id"):
        check_replica(_STORED, _NAMES, environ)


def test_the_default_store_is_refused() -> None:
    """It would be lost with the replica; a model that stores nothing needs none."""
    environ = {ROUTED_BY: _NAMES.id}
    with pytest.raises(ConfigError, match=r"handler\.store\.url"):
        check_replica(load_config({"handler": {"model": "model"}}), _NAMES, environ)
    nothing = load_config({"handler": {"model": "model", "store": {"url": "none"}}})
    check_replica(nothing, _NAMES, environ)
