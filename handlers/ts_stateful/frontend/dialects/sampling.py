"""How other servers' clients say how to generate: one table of names, and what they come to here.

Owns which of those parameters are honoured, which are taken because they change nothing, and which are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Prompt
from ts_stateful.protocol.strict_json import convert

__all__ = ["prompt_of"]

# Theirs to ours. Of two names for the same thing the later one here counts.
_NAMES = {
    "max_new_token": "max_new_tokens",
    "max_new_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "sampling_seed": "seed",
    "seed": "seed",
    "stop": "stop",
    "stop_sequences": "stop",
    "ignore_eos_token": "ignore_eos",
    "ignore_eos": "ignore_eos",
}
# What asks for nothing that would not be done anyway.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "min_p": (0,),
    "min_new_tokens": (0,),
    "n": (1,),
    "best_of": (1,),
    "num_beams": (1,),
    "early_stopping": (False,),
    "decoder_input_details": (False,),
    "watermark": (False,),
    "return_logprob": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
}


def prompt_of(text: str, parameters: Mapping[str, Any], *, field: str, **others: Any) -> Prompt:
    """The prompt that `parameters` describe, which a client has sent as `field`, and `others` under our names.

    Without `do_sample` the temperature decides, 0 where there is none; `do_sample: true` is a temperature of 1 where none is
    given, `do_sample: false` is 0.

    Raises:
        InvalidRequest: one of them is unknown, cannot be honoured, or has a wrong type or range.
    """
    asked: dict[str, Any] = {}
    for theirs, ours in _NAMES.items():
        if parameters.get(theirs) is not None:
            asked[ours] = parameters[theirs]
    _check_others(parameters, field)
    do_sample = parameters.get("do_sample")
    if not isinstance(do_sample, bool | None):
        raise InvalidRequest("expected `bool`", field=f"{field}.do_sample")
    if do_sample is not None:
        asked["temperature"] = asked.get("temperature", 1.0) if do_sample else 0.0
    if asked.get("top_k") == -1:  # everything, as vLLM and SGLang say it
        asked["top_k"] = 0
    try:
        prompt: Prompt = convert({"type": "prompt", "prompt": text, **others, **asked}, Prompt)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field=_theirs(error.field, parameters, field)) from None
    return prompt


def _check_others(parameters: Mapping[str, Any], field: str) -> None:
    for name, value in parameters.items():
        if name in _NAMES or name == "do_sample" or value is None:
            continue
        if name not in _NEUTRAL:
            raise InvalidRequest("unknown parameter", field=f"{field}.{name[:64]}")
        if value not in _NEUTRAL[name]:
            raise InvalidRequest(
                f"not supported; only {_NEUTRAL[name][0]} is", field=f"{field}.{name}"
            )


def _theirs(ours: str | None, parameters: Mapping[str, Any], field: str) -> str:
    head, dot, rest = (ours or "").partition("[")
    names = [name for name, meant in _NAMES.items() if meant == head and name in parameters]
    return f"{field}.{names[-1]}{dot}{rest}" if names else field
