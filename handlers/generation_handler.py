"""Entry point of the archive: sessions of a language or vision-language model."""

from ts_stateful.frontend.handler import SessionHandler

__all__ = ["GenerationHandler"]


# TorchServe takes the one class that this module defines, and reports any import error here as a missing module of its own.
class GenerationHandler(SessionHandler):
    """What TorchServe calls; everything is in `SessionHandler`."""
