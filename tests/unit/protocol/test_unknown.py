"""Errors of unknown keys and values say what there is instead."""

from __future__ import annotations

from typing import Any

import pytest

from ts_stateful.config.check.check import check_names
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Request
from ts_stateful.protocol.strict_json import convert


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (
            {"speculaton": True},
            "handler.speculaton: there is no such key; did you mean speculation?",
        ),
        ({"store": {"ul": "x"}}, "handler.store.ul: there is no such key; did you mean url?"),
        (
            {"states": [{"nme": "a"}]},
            "handler.states[0].nme: there is no such key; did you mean name?",
        ),
        (
            {"quotas": {"x": 1}},
            "handler.quotas.x: there is no such key; there are: openSessions, parkedSessions,",
        ),
        ({"dtype": "float"}, "handler.dtype: there is no value 'float'; did you mean float32?"),
        (
            {"dtype": "x"},
            "handler.dtype: there is no value 'x'; there are: auto, bfloat16, float16,",
        ),
        (
            {"store": {"policy": "best-effort"}},
            "handler.store.policy: there is no value 'best-effort'; did you mean best_effort?",
        ),
        (
            {"commitEvery": 1},
            "handler.commitEvery: is for models that declare `states`, which are missing",
        ),
        ({"states": []}, "handler: inputs, outputs and states: declare at least one of each"),
        ({"media": 3}, "handler.media: expected `object`, got `int`"),
        ({"contextLength": "x"}, "handler.contextLength: expected `int | null`, got `str`"),
    ],
)
def test_what_there_is_instead(handler: dict[str, Any], message: str) -> None:
    """The nearest name, or all."""
    with pytest.raises(ConfigError) as raised:
        load_config({"handler": handler})
    assert str(raised.value).startswith(f"model-config.yaml: {message}")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"type": "prompt", "promt": "x"}, "`promt`; did you mean prompt?"),
        ({"type": "close", "x": 1}, "`x`; there are: erase, session_id"),
        (
            {"type": "prompt", "prompt": "x", "images": ["a.png"]},
            "expected `object`, got `str`; its keys are base64, upload, url",
        ),
        (
            {"type": "prompt", "prompt": "x", "response_format": {"type": "xml"}},
            "invalid value 'xml'; there are: choice, grammar, json_object, json_schema, regex",
        ),
    ],
)
def test_a_request_names_its_fields(request_: dict[str, Any], message: str) -> None:
    """The fields are those of the type that the request names."""
    with pytest.raises(InvalidRequest) as refused:
        convert(request_, Request)
    assert refused.value.message.endswith(message)


def test_a_similar_key_at_the_top_is_a_warning() -> None:
    """TorchServe ignores it silently; a key that is similar to none may be of another handler."""
    found = [finding.key for finding in check_names({"minWorker": 1, "mine": 2, "batchSize": 3})]
    assert found == ["minWorker"]
