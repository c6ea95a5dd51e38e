"""The planned file.

Owns what stands where in it, and that it passes the check.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from ts_stateful.config.check import Finding, check_config
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.config.sizes import show_bytes, show_count
from ts_stateful.plan.asked import Asked, PlanRefused
from ts_stateful.plan.room import find_room
from ts_stateful.plan.setting import Setting, comment, dump, render
from ts_stateful.plan.traffic import PROFILE_KEYS, load_reason, load_timeout_s, traffic
from ts_stateful.protocol.profile import Profile

__all__ = ["Plan", "make_plan"]

_UNDECLARED = "The declarations of the model belong here; without them this is taken for a language model's file."


class Plan(NamedTuple):
    """A `model-config.yaml`, and what whoever asked should know before using it."""

    text: str
    warnings: list[str]


def make_plan(asked: Asked, kept: Mapping[str, Any], command: str) -> Plan:
    """A configuration for what is asked. `kept` is one whose other keys are taken over; `command` is named as the source.

    Raises:
        PlanRefused: it cannot work, or what is taken over does not.
    """
    room, frontend = find_room(asked), traffic(asked)
    kept_handler = kept.get("handler") or {}
    text = "\n".join(
        [
            comment(f"Made by: {command}"),
            comment(f"{room.summary}."),
            _keys(frontend, kept, without={"handler", *PROFILE_KEYS.values()}),
            "handler:",
            textwrap.indent(_keys([*_handler(asked), *room.settings], kept_handler), "  "),
        ]
    )
    findings = _findings(text, asked)
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        raise PlanRefused(f"with what is taken over: {'; '.join(errors)}")
    told = [f"{finding.key}: {finding.message}; {finding.cure}" for finding in findings]
    return Plan(text, [*_advice(asked), *room.warnings, *told])


def _keys(
    settings: Sequence[Setting], kept: Mapping[str, Any], without: Collection[str] = ()
) -> str:
    """The settings, and what of `kept` is none of them. Where none has a value, the kept one stands."""
    planned = {setting.key for setting in settings if setting.value is not None}
    others = {key: value for key, value in kept.items() if key not in planned | set(without)}
    shown = [setting for setting in settings if setting.key not in others]
    return render(shown) + (comment("Taken over.") + dump(others) if others else "")


def _handler(asked: Asked) -> list[Setting]:
    device = "cuda" if asked.gpus else "cpu"
    where = (
        f"One engine per GPU, {show_count(asked.share)} sessions each."
        if asked.gpus
        else "One engine, which uses all of the machine's memory and threads."
    )
    settings = []
    if asked.states is not None and not asked.states.declared:
        settings.append(Setting("inputs, outputs, states", None, _UNDECLARED))
    settings += [
        Setting(
            "model",
            asked.model_name,
            "A folder or file in the archive (`model`, where nothing is said), a path, or a hub id.",
        ),
        Setting("device", device, f"--gpus {asked.gpus}."),
        Setting("engines", asked.engines, where),
        Setting("loadTimeoutSec", load_timeout_s(asked), load_reason(asked)),
    ]
    if asked.states is None:
        if asked.dtype != "auto":
            settings.append(Setting("dtype", asked.dtype, "Of weights and of what sessions keep."))
        if asked.context is not None:
            settings.append(
                Setting("contextLength", asked.context, "Tokens of a session at most (--context).")
            )
    return settings


def _findings(text: str, asked: Asked) -> list[Finding]:
    try:
        return check_config(load_config(yaml.safe_load(text)), asked.model)
    except ConfigError as error:
        raise PlanRefused(f"with what is taken over: {error}") from None


def _advice(asked: Asked) -> list[str]:
    advice = []
    if asked.gpus > asked.sessions:
        advice.append(
            f"{show_count(asked.gpus - asked.sessions)} of {show_count(asked.gpus)} GPUs have nothing to do: a session lives"
            " on one of them"
        )
    if asked.states is None and asked.profile is Profile.SEQUENCE and asked.sessions > 1:
        advice.append(
            "in the sequence profile TorchServe begins a batch when the longest turn of the last one has ended, so turns of a"
            " language model wait for each other; --profile continuous runs them side by side"
        )
    if asked.profile is Profile.ASYNC:
        advice.append(
            "in the async profile one misbehaving client can end the streams of the others"
        )
    if asked.model is not None:
        if asked.model.estimated and asked.weight_bytes is None:
            advice.append(
                f"no weights lie beside the configuration; {show_bytes(asked.weights)} are an estimate, --weights tells them"
            )
        if asked.model.image_tokens is None and asked.session_image_tokens is None:
            advice.append(
                "how many tokens an image takes varies with its size and is counted as 0; --image-tokens tells it"
            )
    elif not asked.weights and (asked.gpu_memory or asked.memory):
        advice.append("the model's weights are counted as 0; --weights tells them")
    return advice
