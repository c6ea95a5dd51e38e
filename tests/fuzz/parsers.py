"""Parsers of what strangers send or could write, each as a function of bytes, with the errors that it may raise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import jwt
import msgspec
import numpy as np

from tests.fuzz import stored
from tests.fuzz.work import bounded
from tests.support import dialects
from tests.support.decoding import decode, decode_clip
from tests.support.fake_dispatcher import NAMES
from tests.support.fake_torchserve import HTTP
from tests.support.issuer import AUDIENCE, ISSUER, Issuer
from tests.support.state_harness import state_settings
from ts_stateful.config.access import JwtAuth
from ts_stateful.config.schema import MediaConfig
from ts_stateful.frontend.parsing.headers import RequestHeaders
from ts_stateful.frontend.parsing.steps import StepParser
from ts_stateful.frontend.pending_response import ClientKind, PendingResponse
from ts_stateful.media.decoder.frames import Audible
from ts_stateful.media.encoded import decode_base64, decode_data_url
from ts_stateful.media.urls import Target, parse_url, resolve_redirect
from ts_stateful.principals.authenticator import Call
from ts_stateful.principals.key_set import KeySet, read_keys
from ts_stateful.principals.key_sources import KeySource, KeysUnreadable
from ts_stateful.principals.tokens import Tokens
from ts_stateful.protocol.errors import MediaError, SessionError, StatefulError, Unauthenticated
from ts_stateful.protocol.profile import Profile
from ts_stateful.store.base import StoreCorrupt

__all__ = ["PARSERS", "Parser", "check"]

_MEDIA = MediaConfig(max_bytes=2_000_000, max_pixels=1_000_000)
_WANTED = Audible(16_000, 0.1, 30.0)
_TOKEN_BYTES = 16_000  # more than a token may have
_KEY_SET_BYTES = 1_000_000  # as many as are read
_HEAD_BYTES = 64_000  # servers and clients read no more headers
_SCHEMES = ("http", "https")
_BASE = Target("https", "example.com", 443, "/a/b?c")


class Parser(NamedTuple):
    """A parser, and the errors that it may raise; any other exception is a defect."""

    parse: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()


def check(parser: Parser, data: bytes) -> str:
    """Parse an input; return the name of the error that refused it, or nothing.

    Raises:
        Exception: it is no error of the parser's, or a property does not hold.
        TooMuchWork: the input has cost more than its size allows.
    """
    try:
        bounded(len(data), lambda: parser.parse(data))
    except parser.errors as error:
        return type(error).__name__
    return ""


def _message(data: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """Read headers and parts of a request: lines of `name: value`, an empty line, and the body.

    With a header `parts`, that text separates parts of a form, each a name, a line feed, and the part's content.
    """
    head, _, body = data.partition(b"\n\n")
    lines = [line.partition(":") for line in head[:_HEAD_BYTES].decode("latin-1").split("\n")]
    headers = {name.strip().lower(): value.strip(" ") for name, _, value in lines if name.strip()}
    separator = headers.pop("parts", "").encode("latin-1")
    if not separator:
        return headers, {"body": body}
    parts = [part.partition(b"\n") for part in body.split(separator)]
    return headers, {name.decode("latin-1"): content for name, _, content in parts}


def _request(data: bytes) -> None:
    """Parse a request in each profile over HTTP and gRPC; engines must be able to receive the result."""
    headers, parts = _message(data)
    for profile in Profile:
        for grpc in (False, True):
            sent = {"data" if grpc and name == "body" else name: parts[name] for name in parts}
            exchange = dialects.ask(b"", headers=headers, data=sent, profile=profile, grpc=grpc)
            if exchange.submitted is not None:
                msgspec.msgpack.encode(exchange.submit)
            elif exchange.error is not None:
                assert 400 <= exchange.error.status < 500
                msgspec.json.decode(exchange.error.body)


@functools.cache
def _step_parser(raw: str | None) -> StepParser:
    datatype = {"text": "INT16", "bytes": "BOOL"}.get(raw or "", "FP32")
    declared = {"name": "x", "datatype": datatype, "shape": [-1], "raw": raw}
    states, outputs = [{"name": "h", "shape": [1]}], [{"name": "y", "shape": [1]}]
    settings = state_settings(inputs=[declared], outputs=outputs, states=states)
    return StepParser(Profile.CONTINUOUS, NAMES, settings)


def _step(data: bytes) -> object:
    """Parse a step of a model with recurrent state, by the raw format that a header names."""
    headers, parts = _message(data)
    raw = headers.pop("raw", "")
    parser = _step_parser(raw if raw in ("text", "pcm16", "bytes") else None)
    pending = PendingResponse("r", ClientKind.HTTP, NAMES)
    read = RequestHeaders.read({**HTTP, **headers}, NAMES, minting=False)
    return msgspec.msgpack.encode(parser.parse(pending, parts, read))


def _url(data: bytes) -> None:
    """Parse a URL; a parsed URL means the same when it is parsed again."""
    found = parse_url(data.decode("utf-8", "surrogateescape"), _SCHEMES, "url")
    assert parse_url(found.url, _SCHEMES, "url") == found
    assert found.url.isascii()


def _redirect(data: bytes) -> object:
    """Parse the target of a redirect."""
    return resolve_redirect(_BASE, data[:_HEAD_BYTES], _SCHEMES, "url")


def _encoded(data: bytes) -> None:
    """Decode base64, or a URL that holds it."""
    text = data.decode("utf-8", "surrogateescape")
    decoder = decode_data_url if text.startswith("data:") else decode_base64
    assert 0 < len(decoder(text, _MEDIA.max_bytes, "url")) <= _MEDIA.max_bytes


def _image(data: bytes) -> None:
    """Decode an image, in a decoder process."""
    found = decode(data, _MEDIA, "image")
    assert found.mode == "RGB"
    assert found.width * found.height <= _MEDIA.max_pixels


def _clip(data: bytes) -> None:
    """Decode a clip of audio, in a decoder process."""
    found = decode_clip(data, _MEDIA, _WANTED, "audio")
    assert found.dtype == np.float32
    assert 0 < len(found) <= _WANTED.rate * _WANTED.max_seconds + 1


class _Published(KeySource):
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        return self._data


@functools.cache
def _tokens() -> Tokens:
    keys = KeySet(_Published(Issuer().key_set), 300)
    keys.refresh()
    return Tokens(JwtAuth(issuer=ISSUER, audience=AUDIENCE, jwks="unused"), keys)


def _token(data: bytes) -> None:
    """Look for the principal in a token without a signature: a header and claims, with an empty line between them."""
    parts = [jwt.utils.base64url_encode(part) for part in data[:_TOKEN_BYTES].split(b"\n\n")]
    call = Call((("authorization", f"Bearer {b'.'.join(parts).decode()}"),))
    raise AssertionError(f"accepted as {_tokens().principal_of(call)}")


PARSERS: Final[Mapping[str, Parser]] = {
    "request": Parser(_request),  # an error becomes an answer
    "step": Parser(_step, (StatefulError,)),
    "url": Parser(_url, (MediaError,)),
    "redirect": Parser(_redirect, (MediaError,)),
    "encoded": Parser(_encoded, (MediaError,)),
    "image": Parser(_image, (MediaError,)),
    "clip": Parser(_clip, (MediaError,)),
    "token": Parser(_token, (Unauthenticated,)),
    "key-set": Parser(lambda data: read_keys(data[:_KEY_SET_BYTES]), (KeysUnreadable,)),
    "entry": Parser(stored.entry, (StoreCorrupt,)),
    "log": Parser(stored.log, (StoreCorrupt, SessionError)),
    "sequence": Parser(stored.sequence, (StoreCorrupt,)),
    "stored-image": Parser(stored.stored_image, (StoreCorrupt,)),
}
"""By name, which is that of its folder in the corpus."""
