"""Any mixture of dialects is accepted, or refused in one of them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.dialects import ask

_NAMES = [
    "type",
    "prompt",
    "inputs",
    "parameters",
    "stream",
    "requestType",
    "extSessionID",
    "sampling_params",
    "path",
    "prompt_text",
    "session_id",
    "model",
    "messages",
    "role",
    "content",
    "text",
    "image_url",
    "url",
    "n",
    "stop",
    "temperature",
    "tools",
    "max_tokens",
    "stream_options",
    "name",
    "do_sample",
]
_WORDS = [
    "open",
    "prompt",
    "close",
    "start_session",
    "send_text_prompt",
    "close_session",
    "NEW_SESSION",
    "CLOSE",
    "SESSION",
    "CLOSE_SESSION",
    "chat",
    "user",
    "assistant",
    "system",
    "text",
    "image_url",
    "https://x",
    "none",
]
_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS | st.sampled_from(_WORDS) | st.text(max_size=5).filter(lambda text: text.isascii()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4)
    ),
    max_leaves=8,
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"role": st.sampled_from(_WORDS) | _VALUES, "content": _VALUES, "name": _VALUES},
    ),
    max_size=3,
)
_DOCUMENTS = st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=6).flatmap(
    lambda document: (
        st.just(document) | _MESSAGES.map(lambda messages: {**document, "messages": messages})
    )
)
_PATHS = st.sampled_from(["", "v1/chat/completions", "v1/models", "v1/models/chat", "v1/x", "x"])


@given(document=_DOCUMENTS, path=_PATHS, grpc=st.booleans())
def test_anything_is_a_request_or_refused_in_a_dialect(
    document: dict[str, Any], path: str, grpc: bool
) -> None:
    """A refusal is a JSON document with a status of 400 or 404; a request can be answered in its dialect."""
    exchange = ask(document, headers={"url_path": path}, grpc=grpc)
    if exchange.error is not None:
        assert exchange.error.status in (400, 404)
        assert json.loads(exchange.error.body)
        return
    if exchange.submitted is None:
        assert json.loads(exchange.answer)["object"] in ("list", "model")
        return
    exchange.answered()
    if exchange.submit.streams:
        assert exchange.streamed("a", "b")


@given(body=st.binary(max_size=40), path=_PATHS)
@example(body=b'{"type":"hello"}', path="")
def test_any_bytes_are_refused_or_read(body: bytes, path: str) -> None:
    """In the dialect of the path, where that decides; a few bytes can be as much as `{"type":"hello"}`."""
    exchange = ask(body, headers={"url_path": path})
    assert exchange.error is not None or exchange.answer or exchange.submitted is not None
