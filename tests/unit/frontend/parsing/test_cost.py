"""The processor time per byte of every parser, beside that of `msgspec.json.decode` for the same bytes as JSON."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from tests.support.fake_dispatcher import NAMES
from tests.support.fake_torchserve import HTTP
from tests.support.state_harness import state_settings
from ts_stateful.frontend.intake import Parser
from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.frontend.parsing.requests import RequestParser
from ts_stateful.frontend.parsing.steps import StepParser
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
from ts_stateful.protocol.errors import StatefulError
from ts_stateful.protocol.profile import Profile

# The largest ratios were 18 and 3 when this was written.
_MAX_RATIO = 50.0
_MAX_RATIO_REFUSED = 9.0
_ROUNDS = 5
MB = 1_000_000
_VALUES = 90_000  # just within the limit


def array(value: bytes, size: int = MB, start: bytes = b'{"prompt":[', end: bytes = b"]}") -> bytes:
    """Make JSON of this size with one value many times."""
    count = (size - len(start) - len(end)) // (len(value) + 1)
    return start + b",".join([value] * count) + end


def string(content: bytes, size: int = MB) -> bytes:
    """Make JSON with one string."""
    return b'{"prompt":"' + content * ((size - 20) // len(content)) + b'"}'


def keys(start: bytes = b"{", end: bytes = b"}") -> bytes:
    """Make JSON with many keys."""
    return start + b",".join(b'"%x":1' % number for number in range(_VALUES)) + end


def images(ending: bytes) -> bytes:
    """Make JSON with image data that ends so."""
    return json.dumps({"prompt": "x", "images": [{"base64": "A" * MB}] * 8}).encode() + ending


PARSED = {
    "empty arrays": array(b"[]", 140_000),
    "empty objects": array(b"{}", 140_000),
    "objects": array(b'{"a":1}', 350_000),
    "nested objects": array(b'{"a":' * 40 + b"1" + b"}" * 40, 330_000),
    "strings": array(b'"a"', 4 * _VALUES),
    "escapes": array(b'"\\u0041\\n"'),
    "numbers": array(b"1", 2 * _VALUES),
    "fractions": array(b"1.5e3", 6 * _VALUES),
    "long numbers": array(b"9" * 4000),
    "keys": keys(),
    "metadata": keys(b'{"type":"open","metadata":{', b"}}"),
    "parameters": keys(b'{"inputs":"x","parameters":{', b"}}"),
    "brackets in a text": string(b"["),
    "quotes in a text": string(b'\\"'),
    "characters as escapes": string(b"\\u00e9"),
    "pairs of surrogates": string(b"\\ud83d\\ude00"),
    "characters of two bytes": string("é".encode()),
    "images": json.dumps({"prompt": "x", "images": [{"base64": "A" * MB}] * 8}).encode(),
    "images by URL": array(b'{"url":"https://a"}', MB, b'{"prompt":"x","images":['),
    "stop strings": array(b'"a"', 300_000, b'{"prompt":"x","stop":['),
    "messages": array(b'{"role":"user","content":"a"}', 120_000, b'{"model":"m","messages":['),
}
REFUSED = {
    "empty arrays": array(b"[]", MB),
    "more empty arrays": array(b"[]", 8 * MB),
    "objects": array(b'{"a":1}'),
    "nested objects": array(b'{"a":' * 8 + b"1" + b"}" * 8),
    "deep objects": b'{"a":' * 900 + b"1" + b"}" * 900,
    "deep arrays": b"[" * 900 + b"]" * 900,
    "strings": array(b'"a"'),
    "more strings": array(b'"a"', 8 * MB),
    "empty strings": array(b'""'),
    "escaped quotes": array(b'"\\""'),
    "a long text": string(b"x", 8 * MB),
    "image data with escapes": array(b'{"base64":"' + b"A" * 400_000 + b'\\\\"}', 8 * MB),
    "keys of images": array(b'{"base64":"AAAA"}', 8 * MB),
}
STEPS = {
    "numbers": array(b"1", 2 * _VALUES, b'{"inputs":[{"name":"x","data":[', b"]}]}"),
    "fractions": array(b"1.5e3", 6 * _VALUES, b'{"inputs":[{"name":"x","data":[', b"]}]}"),
    "rows": array(b"[1]", 2 * _VALUES, b'{"inputs":[{"name":"x","data":[', b"]}]}"),
    "tensors": array(b'{"name":"x","data":1}', 500_000, b'{"inputs":[', b"]}"),
    "strings": array(
        b'"a"', 300_000, b'{"inputs":[{"name":"x","data":["' + b"a" * 100_000 + b'",', b"]}]}"
    ),
}


@pytest.fixture
def frozen() -> None:
    """Keep the collector from the objects of other tests, as the worker keeps it from torch's."""
    gc.freeze()


def step_parser(raw: str) -> StepParser:
    """Make the parser of a model that takes one input in this raw format."""
    settings = state_settings(
        inputs=[{"name": "x", "datatype": "FP32", "shape": [-1], "raw": raw}],
        outputs=[{"name": "y", "shape": [1]}],
        states=[{"name": "h", "shape": [1]}],
    )
    return StepParser(Profile.CONTINUOUS, NAMES, settings)


def ratio(
    parser: Parser, data: Mapping[str, bytes], headers: Mapping[str, Any], as_json: bytes
) -> float:
    """Return the time of the parser divided by that of decoding `as_json`; the least of some rounds each."""
    ours, theirs = [], []
    for _ in range(_ROUNDS):
        ours.append(cost_of(lambda: refusal(parser, data, headers)))
        gc.disable()  # which is not the cost of decoding
        theirs.append(cost_of(lambda: msgspec.json.decode(as_json)))
        gc.enable()
    return min(ours) / min(theirs)


def refusal(parser: Parser, data: Mapping[str, bytes], headers: Mapping[str, Any]) -> str:
    """Parse a request; return the message of the error, if any."""
    pending = PendingResponse("r", ClientKind.HTTP, NAMES)
    try:
        parser.parse(pending, data, RequestHeaders.read(headers, NAMES, minting=False))
    except StatefulError as error:
        return error.message
    return ""


def cost_of(work: Callable[[], Any]) -> float:
    """Return the seconds of processor time."""
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", PARSED)
def test_json_within_the_limits_costs_little_more_than_its_bytes(name: str) -> None:
    """Whatever it holds."""
    parser, data = RequestParser(Profile.CONTINUOUS, NAMES), {"body": PARSED[name]}
    assert "handler.limits" not in refusal(parser, data, HTTP)
    assert ratio(parser, data, HTTP, PARSED[name]) < _MAX_RATIO


@pytest.mark.parametrize("name", REFUSED)
def test_json_beyond_a_limit_costs_less_than_its_values(name: str) -> None:
    """It is refused by a look at its bytes."""
    parser, data = RequestParser(Profile.CONTINUOUS, NAMES), {"body": REFUSED[name]}
    assert "handler.limits" in refusal(parser, data, HTTP)
    assert ratio(parser, data, HTTP, REFUSED[name]) < _MAX_RATIO_REFUSED


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", ["empty arrays", "images", "messages"])
@pytest.mark.parametrize("way", ["form", "grpc", "openai"])
def test_json_costs_the_same_in_every_transport(name: str, way: str) -> None:
    """In a form, in a gRPC message, and under the path of another dialect."""
    headers = {} if way == "grpc" else dict(HTTP)
    if way == "openai":
        headers["url_path"] = "v1/chat/completions"
    data = {"body" if way == "openai" else "data": PARSED[name]}
    parser = RequestParser(Profile.CONTINUOUS, NAMES)
    assert ratio(parser, data, headers, PARSED[name]) < _MAX_RATIO


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", STEPS)
def test_tensors_cost_little_more_than_their_bytes(name: str) -> None:
    """In JSON: flat, nested, or of something that is no number."""
    data = {"body": STEPS[name]}
    assert ratio(step_parser("text"), data, HTTP, STEPS[name]) < _MAX_RATIO


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        ("text", b"1," * (_VALUES - 1) + b"1"),
        ("text", b"1.5e3," * (_VALUES - 1) + b"1"),
        ("text", b"1,1\n" * 2 * MB),
        ("pcm16", bytes(8 * MB)),
        ("bytes", bytes(8 * MB)),
    ],
)
def test_raw_inputs_cost_little_more_than_their_bytes(raw: str, body: bytes) -> None:
    """Beside the same numbers as an array, or as many bytes in a string."""
    is_array = raw == "text" and b"\n" not in body
    as_json = b"[" + body + b"]" if is_array else string(b"x", len(body))
    headers = {**HTTP, "Content-Type": "text/plain"}
    assert ratio(step_parser(raw), {"body": body}, headers, as_json) < _MAX_RATIO


@pytest.mark.parametrize("raw", [None, "text"])
@pytest.mark.parametrize("value", ["", "1"])
def test_many_parts_cost_little_more_than_their_bytes(raw: str | None, value: str) -> None:
    """Of a form, a query or a gRPC message, with TorchServe's headers of each part."""
    names = [f"{number:x}" for number in range(20_000)]
    parts = {**dict.fromkeys(names, value.encode()), "data": b"{}"}
    headers = {**HTTP, **{name: {"content-type": ""} for name in parts}}
    parser = step_parser(raw) if raw else RequestParser(Profile.CONTINUOUS, NAMES)
    as_json = json.dumps(dict.fromkeys(names, value)).encode()
    assert ratio(parser, parts, headers, as_json) < _MAX_RATIO


def test_many_headers_cost_little_more_than_their_bytes() -> None:
    """Also those of sessions."""
    names = {f"x-{number:x}": "1" for number in range(20_000)}
    headers = {**HTTP, **names, NAMES.id: "a" * 100_000, "Content-Type": "application/json;" * 5000}
    parser, data = RequestParser(Profile.CONTINUOUS, NAMES), {"body": b'{"prompt":"x"}'}
    assert ratio(parser, data, headers, json.dumps(headers).encode()) < _MAX_RATIO
