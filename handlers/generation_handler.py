"""Entry point of the archive: sessions of a language or vision-language model."""

from ts_stateful.frontend.handler import SessionHandler

__all__ = ["GenerationHandler"]


# TorchServe takes the only class of this module, and reports any import error here as a missing module of its own.
class GenerationHandler(SessionHandler):
    """The class that TorchServe instantiates; see `SessionHandler`."""
