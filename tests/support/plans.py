"""Models of the field, a model with states, and plans for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from ts_stateful.config.sizes import TransformerSize
from ts_stateful.plan import Asked, Plan, make_plan

GIB = 1 << 30
LLAMA_8B = TransformerSize(
    layers=32,
    kv_heads=8,
    key_dim=128,
    value_dim=128,
    hidden=4096,
    feature_maps=1,
    window=131_072,
    image_tokens=0,
    weights=8_030_000_000,
    estimated=False,
    heads=32,
)
LLAVA_7B = dataclasses.replace(LLAMA_8B, kv_heads=32, window=4096, image_tokens=576)
STATES: dict[str, Any] = {
    "handler": {
        "model": "counter.py:Counter",
        "inputs": [{"name": "x", "shape": [4], "raw": "text"}],
        "outputs": [{"name": "y", "shape": [4], "raw": "text"}],
        "states": [{"name": "hidden", "shape": [2, 1024]}],
    }
}


def plan_of(asked: Asked) -> Plan:
    """A plan, which takes over the declarations where there are some."""
    return make_plan(
        asked, STATES if asked.states and asked.states.declared else {}, "ts-stateful plan"
    )


def document_of(plan: Plan) -> dict[str, Any]:
    """The YAML of a plan, parsed."""
    document: dict[str, Any] = yaml.safe_load(plan.text)
    return document
