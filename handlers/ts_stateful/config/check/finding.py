"""What a check finds.

Owns the form of a finding; every rule makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing to change in a configuration: which key, why, and how."""

    severity: Literal["error", "warning"]
    key: str
    message: str
    cure: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.key}: {self.message}; {self.cure}"


def error(key: str, message: str, cure: str) -> Finding:
    """It would hang, leak, lose sessions or not start."""
    return Finding("error", key, message, cure)


def warning(key: str, message: str, cure: str) -> Finding:
    """It would be slow or risky."""
    return Finding("warning", key, message, cure)
