"""Entry point of the archive: sessions of any model with recurrent state."""

from ts_stateful.frontend.handler import SessionHandler

__all__ = ["StateHandler"]


# TorchServe takes the one class that this module defines, and reports any import error here as a missing module of its own.
class StateHandler(SessionHandler):
    """What TorchServe calls; everything is in `SessionHandler`."""

    declares_states = True
