"""Findings, the results of rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One change that a configuration needs: the key, the reason and the remedy."""

    severity: Literal["error", "warning"]
    key: str
    message: str
    cure: str

    @property
    def reason(self) -> str:
        """The text without the severity."""
        return f"{self.key}: {self.message}; {self.cure}"

    def __str__(self) -> str:
        return f"{self.severity}: {self.reason}"


def error(key: str, message: str, cure: str) -> Finding:
    """Report a key with which the server would hang, leak, lose sessions or not start."""
    return Finding("error", key, message, cure)


def warning(key: str, message: str, cure: str) -> Finding:
    """Report a key with which the server would be slow or at risk."""
    return Finding("warning", key, message, cure)
