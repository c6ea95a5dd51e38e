"""Triton's own HTTP client, unmodified, on models with recurrent state, at both fronts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException

from tests.e2e.state_server import AsgiStateModels, StateModels, at
from tests.e2e.steps import new_id

MODELS = ("ledger", "meter")


@pytest.fixture(params=[at("state_models", "torchserve"), at("asgi_state_models", "asgi")])
def client(request: pytest.FixtureRequest) -> Iterator[InferenceServerClient]:
    """A client of each front in turn."""
    if request.param == "torchserve":
        models: StateModels = request.getfixturevalue("state_models")
        for name in MODELS:
            models.named(name)
        url = models.server.http_url
    else:
        front: AsgiStateModels = request.getfixturevalue("asgi_state_models")
        url = front.server.http_url
    with InferenceServerClient(url.removeprefix("http://"), network_timeout=60) as made:
        yield made


def number(value: int, shape: tuple[int, ...] = (1,), *, binary: bool = True) -> list[InferInput]:
    """Return the inputs of a step of the ledger."""
    made = InferInput("number", list(shape), "INT64")
    made.set_data_from_numpy(np.full(shape, value, np.int64), binary_data=binary)
    return [made]


def step(client: InferenceServerClient, value: int, **options: Any) -> InferResult:
    """Send a step of the ledger."""
    shape, binary = options.pop("shape", (1,)), options.pop("binary", True)
    inputs = number(value, shape, binary=binary)
    return client.infer("ledger", inputs, **options)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("named", ["number", "text"])
def test_a_sequence(client: InferenceServerClient, binary: bool, named: str) -> None:
    """Its id is a number or a text; its tensors are binary or JSON; START begins it again."""
    session: int | str = (
        new_id() if named == "text" else int(new_id().removeprefix("seq_"), 16) >> 2
    )
    sums = []
    for value, flags in (
        (1, (True, False)),
        (2, (False, False)),
        (3, (False, True)),
        (4, (True, False)),
    ):
        start, end = flags
        outputs = [InferRequestedOutput("sum", binary_data=binary)]
        result = step(
            client,
            value,
            binary=binary,
            outputs=outputs,
            sequence_id=session,
            sequence_start=start,
            sequence_end=end,
            request_id=f"step {value}",
            priority=1,
            timeout=10**6,
        )
        document = result.get_response()
        assert (document["id"], document["model_name"]) == (f"step {value}", "ledger")
        assert document["model_version"] == "1.0"
        assert document["parameters"]["sequence_id"] == session
        assert ("data" in document["outputs"][0]) is not binary
        sums.append(result.as_numpy("sum"))
    assert [total.tolist() for total in sums] == [[1], [3], [6], [4]]
    assert sums[0].dtype == np.int64
    step(client, 0, sequence_id=session, sequence_end=True)


def test_all_outputs_are_binary_by_default(client: InferenceServerClient) -> None:
    """Each has its own bytes; shapes with a row are answered in kind."""
    result = step(
        client, 5, shape=(1, 1), sequence_id=new_id(), sequence_start=True, sequence_end=True
    )
    shapes = {one["name"]: one["shape"] for one in result.get_response()["outputs"]}
    assert shapes == {
        "sum": [1, 1],
        "account": [1, 1],
        "numbers": [1, 1],
        "flags": [1, 2],
        "rows": [1],
    }
    assert result.as_numpy("account").tolist() == [[995]]
    assert result.as_numpy("flags").tolist() == [[True, True]]


def test_one_answer_has_both_forms(client: InferenceServerClient) -> None:
    """The client says of each output if it is binary."""
    outputs = [InferRequestedOutput("sum", binary_data=False), InferRequestedOutput("account")]
    result = step(client, 5, outputs=outputs, sequence_id=new_id(), sequence_end=True)
    assert [result.as_numpy(name).tolist() for name in ("sum", "account")] == [[5], [995]]
    assert result.get_output("sum")["data"] == [5]


def test_binary_tensors_have_all_numbers(client: InferenceServerClient) -> None:
    """NaN and infinities, which JSON lacks, in both directions."""
    samples = np.array([np.inf, -np.inf, np.nan, 0.1], np.float32)
    made = InferInput("samples", [4], "FP32")
    made.set_data_from_numpy(samples)
    result = client.infer("meter", [made], sequence_id=new_id(), sequence_end=True)
    np.testing.assert_array_equal(result.as_numpy("halves"), samples / 2)


def test_errors_are_texts(client: InferenceServerClient) -> None:
    """They name the field, and change nothing."""
    session = new_id()
    step(client, 1, sequence_id=session, sequence_start=True)
    wrong = InferInput("number", [1], "INT32")
    wrong.set_data_from_numpy(np.array([1], np.int32))
    with pytest.raises(InferenceServerException) as refused:
        client.infer("ledger", [wrong], sequence_id=session)
    assert refused.value.status() == "400"
    assert refused.value.message() == "inputs[0].datatype: must be INT64"
    with pytest.raises(InferenceServerException, match=r"inputs\[0\].shape: 2 elements"):
        step(client, 1, shape=(2,), sequence_id=session)
    with pytest.raises(InferenceServerException, match="outputs"):
        step(client, 1, outputs=[InferRequestedOutput("none")], sequence_id=session)
    last = step(client, 2, sequence_id=session, sequence_end=True)
    assert last.as_numpy("sum").tolist() == [3]


@pytest.mark.parametrize("has_header", [True, False])
def test_a_sequence_in_the_sequence_profile(state_models: StateModels, has_header: bool) -> None:
    """Also without TorchServe's own header; the ids and flags that TorchServe makes then mean nothing."""
    model, url = state_models.named("ledger-sequence"), state_models.server.http_url
    session = new_id()
    headers = {"ts_request_sequence_id": session} if has_header else None
    sums = []
    with InferenceServerClient(url.removeprefix("http://"), network_timeout=60) as client:
        for value in (1, 2, 3):
            result = client.infer(
                model,
                number(value),
                sequence_id=session,
                sequence_start=value == 1,
                sequence_end=value == 3,
                headers=headers,
            )
            sums.append(result.as_numpy("sum").tolist())
    assert sums == [[1], [3], [6]]


def test_the_front_of_its_own_describes_itself(asgi_state_models: AsgiStateModels) -> None:
    """Health and metadata of the server and of its models."""
    url = asgi_state_models.server.http_url.removeprefix("http://")
    with InferenceServerClient(url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("ledger")
        assert client.is_model_ready("ledger", "1.0")
        assert not client.is_model_ready("none")
        assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
        metadata = client.get_model_metadata("ledger")
        assert metadata["inputs"] == [{"name": "number", "datatype": "INT64", "shape": [1]}]
        assert (metadata["name"], metadata["versions"]) == ("ledger", ["1.0"])
        with pytest.raises(InferenceServerException, match="no model 'none'"):
            client.get_model_metadata("none")
        with pytest.raises(InferenceServerException, match="no version '7'"):
            step(client, 1, model_version="7")
