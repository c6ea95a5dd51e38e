"""Stateful sessions for TorchServe: `connect` is the client's entry, `errors` has the server's errors.

The worker imports this package too, so the client and gRPC are loaded at the first use of one of these names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ts_stateful.version import __version__

if TYPE_CHECKING:
    from ts_stateful.client import Server, Session, connect
    from ts_stateful.protocol import errors

__all__ = ["Server", "Session", "__version__", "connect", "errors"]


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("ts_stateful.protocol.errors")
    if name in __all__:
        return getattr(importlib.import_module("ts_stateful.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
