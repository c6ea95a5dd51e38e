"""The version of this package; setup.cfg reads it from here, `hello` answers it."""

__all__ = ["__version__"]

__version__ = "0.1.0"
