"""The names that OpenAI's clients can give as `model`: the served one, and those of its adapters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.dialects import Exchange, ask
from ts_stateful.protocol.errors import InvalidRequest

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
BODIES = {
    "v1/chat/completions": CHAT,
    "v1/completions": {"prompt": "hi"},
    "v1/responses": {"input": "hi"},
}


def named(path: str, model: str) -> Exchange:
    return ask({**BODIES[path], "model": model}, headers={"url_path": path}, adapters=["red"])


@pytest.mark.parametrize("path", BODIES)
def test_an_adapter_is_a_model(path: str) -> None:
    """The session gets it; the model's own name stands for none."""
    assert named(path, "red").command.adapter == "red"
    assert named(path, "chat").command.adapter is None
    status, body = named(path, "blue").refusal
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert "this is `chat`, `red`" in body["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
def test_an_error_about_the_adapter_names_the_client_s_field(path: str) -> None:
    """Clients know no `adapter`."""
    _, body = named(path, "red").fails(InvalidRequest("another one", field="adapter"))
    assert body["error"]["param"] == "model"


def test_adapters_are_listed_after_their_model() -> None:
    """With the model as their parent."""
    listed = json.loads(ask(b"", headers={"url_path": "v1/models"}, adapters=["red"]).answer)
    assert [(one["id"], one.get("parent")) for one in listed["data"]] == [
        ("chat", None),
        ("red", "chat"),
    ]
    shown = json.loads(ask(b"", headers={"url_path": "v1/models/red"}, adapters=["red"]).answer)
    assert shown == listed["data"][1]


@pytest.mark.parametrize("path", [path for path in BODIES if path != "v1/responses"])
def test_azures_clients_name_the_model_in_the_path(path: str) -> None:
    """The path counts, whatever the body names."""
    for name, adapter in (("red", "red"), ("chat", None)):
        deployed = path.replace("v1/", f"v1/deployments/{name}/")
        asked = ask(
            {**BODIES[path], "model": "blue"}, headers={"url_path": deployed}, adapters=["red"]
        )
        assert asked.command.adapter == adapter
    status, body = ask(
        BODIES[path], headers={"url_path": path.replace("v1/", "v1/deployments/x/")}
    ).refusal
    assert (status, body["error"]["code"]) == (404, "model_not_found")
