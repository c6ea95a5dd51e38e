"""Entry point of the archive: sessions of any model with recurrent state."""

from ts_stateful.frontend.handler import SessionHandler

__all__ = ["StateHandler"]


# TorchServe takes the only class of this module, and reports any import error here as a missing module of its own.
class StateHandler(SessionHandler):
    """The class that TorchServe instantiates; see `SessionHandler`."""

    declares_states = True
