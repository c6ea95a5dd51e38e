"""The types of the settings of a generation, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

__all__ = [
    "LogitBias",
    "MinP",
    "Penalty",
    "RepetitionPenalty",
    "StopStrings",
    "StopTokenIds",
    "Tokens",
    "TopLogprobs",
    "TopP",
]

_TokenId = Annotated[int, Meta(ge=0, le=2**31)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_StopString = Annotated[str, Meta(min_length=1, max_length=256)]

LogitBias = Annotated[dict[_TokenId, _Bias], Meta(max_length=1024)]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=10)]
StopStrings = _StopString | Annotated[tuple[_StopString, ...], Meta(max_length=16)]
StopTokenIds = Annotated[tuple[_TokenId, ...], Meta(max_length=64)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
TopP = Annotated[float, Meta(ge=0, le=1)]
