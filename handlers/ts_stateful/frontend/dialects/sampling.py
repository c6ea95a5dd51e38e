"""Other servers' parameters of generation, and their meaning here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.generation import MinP, Penalty, RepetitionPenalty, TopP
from ts_stateful.protocol.requests import Prompt
from ts_stateful.protocol.strict_json import convert

__all__ = ["MAX_TOKENS", "SamplingFields", "prompt_of", "settings_of"]

# A reply without a limit would reserve the rest of the context window, on the device too.
MAX_TOKENS = 1024
_SEEDS = 2**63

# Parameters of the same name and meaning as in a prompt of ours, which bounds them.
_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
)
# Their names to ours. Of two names for the same parameter, the later one in this table wins.
_NAMES = {
    "max_new_token": "max_new_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
    "ignore_eos_token": "ignore_eos",
    **{name: name for name in ("max_new_tokens", "top_k", "seed", *_SAME)},
    "stop_sequences": "stop",
}
# Parameters accepted only with a value that changes nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "length_penalty": (1,),
    "min_new_tokens": (0,),
    "n": (1,),
    "best_of": (1,),
    "num_beams": (1,),
    "early_stopping": (False,),
    "decoder_input_details": (False,),
    "watermark": (False,),
    "return_logprob": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
}


class SamplingFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of sampling that all requests of OpenAI's clients have."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-_SEEDS, le=_SEEDS - 1)] | None = None
    # Not OpenAI's; other servers accept them from its clients.
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    ignore_eos: bool | None = None


def settings_of(body: SamplingFields) -> dict[str, Any]:
    """Return those fields of a prompt of ours that a request has."""
    given = {name: getattr(body, name, None) for name in ("stream", *_SAME)}
    given["top_k"] = max(0, body.top_k or 0)
    given["seed"] = None if body.seed is None else body.seed % _SEEDS
    return {name: value for name, value in given.items() if value is not None}


def prompt_of(text: str, parameters: Mapping[str, Any], *, field: str, **others: Any) -> Prompt:
    """Make the prompt of a client's `parameters`, sent as `field`, and of `others` under our names.

    Without `do_sample` the temperature is the client's, by default 0. With `do_sample: true` the default is 1, with
    `do_sample: false` the value is 0.

    Raises:
        InvalidRequest: a parameter is unknown, unsupported, or has a wrong type or range.
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
    if asked.get("top_k") == -1:  # all tokens, as in vLLM and SGLang
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
