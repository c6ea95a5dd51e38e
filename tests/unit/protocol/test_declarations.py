"""Declarations of models with recurrent state: a contradiction is refused by its path."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest

from ts_stateful.config.schema import ConfigError, load_config

GOOD: dict[str, Any] = {
    "model": "m.pt",
    "inputs": [
        {"name": "x", "shape": [-1, 80], "ragged": "pad"},
        {"name": "lengths", "datatype": "INT64", "lengthsOf": "x"},
        {"name": "first", "datatype": "BOOL", "control": "start"},
    ],
    "outputs": [
        {"name": "y", "shape": [-1, 4], "lengthsFrom": "n"},
        {"name": "n", "datatype": "INT64", "hidden": True},
    ],
    "states": [
        {"name": "h", "shape": [2, 4], "rowsDim": 1, "initial": 0.5},
        {"name": "cache", "shape": [-1, 4], "max": 100, "ragged": "pad", "lengthsFrom": "n"},
    ],
}


def test_a_valid_declaration_is_accepted() -> None:
    """With defaults, and without a language model's settings."""
    state = load_config({"handler": GOOD}).state
    assert state is not None
    assert [tensor.is_derived for tensor in state.inputs] == [False, True, True]
    assert (state.states[1].free_dim, state.inputs[0].num_elements) == (0, 80)


@pytest.mark.parametrize(
    ("place", "fields", "path"),
    [
        ("inputs.0", {"name": "lengths"}, "handler.inputs[1].name"),
        ("inputs.0", {"name": "data"}, "handler.inputs[0].name"),
        ("inputs.0", {"shape": [-1, -1]}, "handler.inputs[0].shape"),
        ("inputs.1", {"max": 3}, "handler.inputs[1].max"),
        ("inputs.0", {"rowsDim": 3}, "handler.inputs[0].rowsDim"),
        ("inputs.0", {"datatype": "BF16"}, "handler.inputs[0].datatype"),
        ("inputs.0", {"raw": "pcm16", "datatype": "BOOL"}, "handler.inputs[0].raw"),
        ("inputs.1", {"lengthsOf": "h"}, "handler.inputs[1]"),
        ("inputs.1", {"control": "end"}, "handler.inputs[1]"),
        ("inputs.1", {"raw": "text"}, "handler.inputs[1].raw"),
        ("outputs.0", {"lengthsFrom": "y"}, "handler.outputs[0].lengthsFrom"),
        ("outputs.0", {"lengthsFrom": None}, "handler.outputs[0].lengthsFrom"),
        ("outputs.0", {"hidden": True}, "handler.outputs"),
        ("states.0", {"max": 3}, "handler.states[0]"),
        ("states.1", {"max": None}, "handler.states[1].max"),
        ("states.1", {"lengthsFrom": None}, "handler.states[1].lengthsFrom"),
        ("states.1", {"lengthsFrom": "x"}, "handler.states[1].lengthsFrom"),
        ("states.0", {"size": 3}, "handler.states[0]"),
        ("states.0", {"datatype": "FLOAT"}, "handler.states[0].datatype"),
        ("states.0", {"shape": [0]}, "handler.states[0].shape"),
        ("states.0", {"initialFile": "h.safetensors"}, "handler.states[0]: initial and"),
        ("outputs.1", {"lengthsFrom": "x"}, "handler.outputs[1].lengthsFrom: n has no free"),
    ],
)
def test_a_contradiction_is_named(place: str, fields: dict[str, Any], path: str) -> None:
    """By the path of the key in the file."""
    document = copy.deepcopy(GOOD)
    kind, _, index = place.partition(".")
    document[kind][int(index)].update(fields)
    with pytest.raises(ConfigError, match=path.replace("[", r"\[").replace(".", r"\.")):
        load_config({"handler": document})


@pytest.mark.parametrize(
    ("datatype", "value", "shown"),
    [
        ("BOOL", 2, "2"),
        ("UINT8", -1, "-1"),
        ("UINT8", 300, "300"),
        ("INT8", 1000, "1000"),
        ("INT64", math.nan, "nan"),
        ("INT64", math.inf, "inf"),
        ("INT64", 1.5, "1.5"),
        ("INT64", 1e19, "1e+19"),
        ("FP16", 1e30, "1e+30"),
        ("FP32", -1e39, "-1e+39"),
    ],
)
@pytest.mark.parametrize(("kind", "key"), [("inputs", "padding"), ("states", "initial")])
def test_a_value_must_be_of_the_datatype(
    kind: str, key: str, datatype: str, value: float, shown: str
) -> None:
    """The error has the path, the value and the range."""
    document = copy.deepcopy(GOOD)
    document[kind][0].update({"datatype": datatype, key: value})
    error = re.escape(f"handler.{kind}[0].{key}: {shown} is no {datatype}; use a")
    with pytest.raises(ConfigError, match=error):
        load_config({"handler": document})


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("BOOL", 1), ("INT8", -128), ("FP16", 65504), ("FP32", -math.inf), ("FP64", 1e308)],
)
def test_values_at_the_ends_of_a_datatype(datatype: str, value: float) -> None:
    """Floats also take infinities, and NaN."""
    for given in (value, math.nan if datatype.startswith("FP") else 0):
        document = copy.deepcopy(GOOD)
        document["states"][0].update({"datatype": datatype, "initial": given})
        load_config({"handler": document})


@pytest.mark.parametrize("kind", ["inputs", "outputs", "states"])
def test_there_must_be_one_of_each(kind: str) -> None:
    """At least one input, output and state."""
    with pytest.raises(ConfigError, match="at least one of each"):
        load_config({"handler": {**GOOD, kind: []}})


def test_settings_of_language_models_are_refused() -> None:
    """By name, like all unknown keys."""
    with pytest.raises(ConfigError, match="prefillChunk"):
        load_config({"handler": {**GOOD, "prefillChunk": 4}})


@pytest.mark.parametrize("store", [{"kvSpill": True}, {"content": "text"}])
def test_store_settings_of_language_models_are_refused(store: dict[str, Any]) -> None:
    """They would have no effect."""
    (name,) = store
    with pytest.raises(ConfigError, match=rf"handler\.store\.{name}: is for language models"):
        load_config({"handler": {**GOOD, "store": store}})
