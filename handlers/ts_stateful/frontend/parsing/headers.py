"""Headers of requests, and the session headers of answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lru import LRU
from msgspec import Struct, structs

from ts_stateful.clock import rfc3339
from ts_stateful.config.schema import ConfigError
from ts_stateful.protocol.errors import SessionIdMismatch
from ts_stateful.protocol.events import Event
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.session_ids import NEW_SESSION, check_session_id

__all__ = [
    "HEADER_LENGTH",
    "HeaderNames",
    "HeaderReader",
    "RequestHeaders",
    "bare_session_id",
    "check_header_names",
    "dialogue_of",
]

# TorchServe's frontend and its Python side read different variables for the same three names.
_FRONTEND_ID = "TS_HEADER_KEY_SEQUENCE_ID"
_FRONTEND_START = "TS_HEADER_KEY_SEQUENCE_START"
_FRONTEND_END = "TS_HEADER_KEY_SEQUENCE_END"
_BACKEND_ID = "TS_REQUEST_SEQUENCE_ID"
_BACKEND_END = "TS_REQUEST_SEQUENCE_END"
# SageMaker's router accepts no other pair of names.
_SAGEMAKER_ID = "x-amzn-sagemaker-session-id"
_SAGEMAKER_CLOSED = "X-Amzn-SageMaker-Closed-Session-Id"

# Names of conversations, of Open WebUI, of gateways, and of coding agents.
_DIALOGUES = ("x-openwebui-chat-id", "x-session-id", "x-claude-code-session-id", "thread-id")
_MAX_NAME = 256  # characters; the rest adds nothing
_MINTED_PREFIX = "ts-seq-"
_MAX_MINTED = 4096  # the most recent ids: more than one TorchServe has sequences
# TorchServe gives every prediction over HTTP a `url_path`, and nothing else.
_PREDICTION_MARK = "url_path"
_METHOD = "x-http-method-override"  # TorchServe does not pass the method on
_HTTP_MARKS = ("host", _PREDICTION_MARK)
_EXPIRES = re.compile(r";\s*Expires=.*", re.IGNORECASE)

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""The header with the bytes of the JSON, if binary tensors follow it."""


def check_header_names(profile: Profile, environ: Mapping[str, str]) -> None:
    """Refuse a header name that only TorchServe's frontend reads: the worker would find no session id.

    Raises:
        ConfigError: the profile is sequence and only one of the two variables is set.
    """
    if profile is Profile.SEQUENCE and _FRONTEND_ID in environ and _BACKEND_ID not in environ:
        raise ConfigError(
            f"{_FRONTEND_ID} is set but {_BACKEND_ID} is not: frontend and worker would look for"
            f" the session id in different headers; set {_BACKEND_ID}={environ[_FRONTEND_ID]} too"
        )


@dataclass(frozen=True)
class HeaderNames:
    """Names of the session headers. Requests may use any of `ids`, `starts` and `ends` (lower case)."""

    id: str
    end: str
    ids: frozenset[str]
    starts: frozenset[str]
    ends: frozenset[str]

    @classmethod
    def of(cls, context: Any, environ: Mapping[str, str]) -> HeaderNames:
        """Combine the names of TorchServe's context with those that only its frontend reads.

        Answers use the context's names, except where only the frontend's variable is set.
        """

        def both(name: str, variable: str) -> frozenset[str]:
            return frozenset({name.lower(), environ.get(variable, name).lower()})

        def of_answers(name: str, backend: str, frontend: str) -> str:
            return name if backend in environ else environ.get(frontend, name)

        session_id = of_answers(context.header_key_sequence_id, _BACKEND_ID, _FRONTEND_ID)
        end = of_answers(context.header_key_sequence_end, _BACKEND_END, _FRONTEND_END)
        if session_id.lower() == _SAGEMAKER_ID and not {_BACKEND_END, _FRONTEND_END} & set(environ):
            end = _SAGEMAKER_CLOSED
        return cls(
            id=session_id,
            end=end,
            ids=both(context.header_key_sequence_id, _FRONTEND_ID),
            starts=both(context.header_key_sequence_start, _FRONTEND_START),
            ends=both(context.header_key_sequence_end, _FRONTEND_END),
        )

    @property
    def grpc_inputs(self) -> frozenset[str]:
        """Name the inputs that clients may send beside the JSON: a token, and those of TorchServe's clients (lower case)."""
        return frozenset({"authorization", "rpc", *self.starts, *self.ends})

    def of_answer(self, event: Event) -> dict[str, str]:
        """Return the session headers of an event; its ids were validated in the request."""
        if event.session_id is None:
            return {}
        if event.closed:
            return {self.end: event.session_id}
        if event.opened_until is None:
            return {self.id: event.session_id}
        return {self.id: f"{event.session_id}; Expires={rfc3339(event.opened_until)}"}


class RequestHeaders(Struct, frozen=True):
    """Contents of one request's headers.

    - `session_ids`: the distinct ids that the client sent. `minted_id`: an id that TorchServe's frontend made because it
      found none. `id_name`: the name of the header, or of the field of a gRPC message, which has the id.
    - `names_session`: the client sent a session header, even one without an id.
    - `path`: the part of the URL after the version. `method`: that of HTTP, empty if the server does not pass it on.
    - `dialogue`: the name of a conversation whose client sends all messages, and no session header.
    - `origin`: the origin of the web page that made a browser send the request; None for other clients.
    - `is_describe`: the management API asks. A client's own `describe` header comes with a prediction.
    - `starts`, `ends`: flags of an HTTP client's sequence. Over gRPC, TorchServe always sets the end header.
    - `infers`: the path is one of the Open Inference Protocol. `header_length`: the bytes of the JSON before binary tensors.
    - `is_tagged`: the document may have an `id`, which the transport puts into the answers.
    """

    is_http: bool
    is_describe: bool
    session_ids: tuple[str, ...]
    minted_id: str | None
    content_type: str = ""  # in lower case, without parameters
    starts: bool = False
    ends: bool = False
    names_session: bool = False
    path: str = ""
    method: str = ""
    dialogue: str | None = None
    origin: str | None = None
    infers: bool = False
    header_length: str | None = None
    is_tagged: bool = False
    id_name: str = "sequence_id"

    @classmethod
    def read(
        cls, headers: Mapping[str, Any], names: HeaderNames, *, minting: bool
    ) -> RequestHeaders:
        """Read the headers of a request; with `minting`, TorchServe's frontend makes ids of its own.

        The mapping also has a dict for every part of the body, under a name that the client chose. Only strings are headers.
        """
        texts = [(name.lower(), value) for name, value in headers.items() if isinstance(value, str)]
        is_http = any(name in _HTTP_MARKS for name, _ in texts)
        is_prediction = any(name == _PREDICTION_MARK for name, _ in texts)
        is_describe = ("describe", "True") in texts and not is_prediction
        # TorchServe sets `explain` for predictions, and for the paths of KServe, which have no `url_path`.
        infers = is_http and not is_prediction and any(name == "explain" for name, _ in texts)
        sent = [value for name, value in texts if name in names.ids]
        # TorchServe passes the sequence id of a gRPC message on verbatim.
        ids = list(dict.fromkeys(map(bare_session_id, sent) if is_http else sent))
        minted_id = None
        if minting and any(name in names.starts and value == "true" for name, value in texts):
            # The frontend overlooks a client's header in another case, and makes an id beside it.
            minted_id = next((value for value in ids if value.startswith(_MINTED_PREFIX)), None)
        types = [value for name, value in texts if name == "content-type"] if is_http else []
        path = headers.get(_PREDICTION_MARK)
        return cls(
            is_http,
            is_describe,
            tuple(value for value in ids if value and value != minted_id),
            minted_id,
            content_type=types[0].partition(";")[0].strip().lower() if types else "",
            # Beside an id that TorchServe made, this header is TorchServe's too.
            starts=is_http and minted_id is None and _is_true(texts, names.starts),
            ends=is_http and _is_true(texts, names.ends),
            names_session=any(value != minted_id for value in ids),
            path=path if isinstance(path, str) else "",
            method=(_first(texts, _METHOD) or "").upper(),
            dialogue=dialogue_of(texts) if is_http else None,
            origin=_first(texts, "origin") if is_http else None,
            infers=infers,
            header_length=_first(texts, HEADER_LENGTH.lower()),
            id_name=names.id if is_http else "sequence_id",
        )

    @property
    def is_openai(self) -> bool:
        """Return True if the path is one of OpenAI's API."""
        return f"{self.path.strip('/')}/".startswith("v1/")

    def session_id(self) -> str | None:
        """Return the id that the client sent.

        Raises:
            InvalidRequest: it has a wrong form.
            SessionIdMismatch: there are two.
        """
        if len(self.session_ids) > 1:
            raise SessionIdMismatch(
                "two session headers name different sessions", field=self.id_name
            )
        session_id = self.session_ids[0] if self.session_ids else None
        if session_id and session_id != NEW_SESSION:
            check_session_id(session_id, self.id_name)
        return session_id


class HeaderReader:
    """Reader of request headers, which remembers the ids that TorchServe's frontend made.

    A client may send such an id back, with a start header of its own. From the second time on the id is the client's.
    """

    def __init__(self, names: HeaderNames, *, minting: bool = False) -> None:
        self.names = names
        self._minting = minting
        self._minted: LRU[str, None] = LRU(_MAX_MINTED)

    def read(self, headers: Mapping[str, Any]) -> RequestHeaders:
        """Read the headers of a new request."""
        read = RequestHeaders.read(headers, self.names, minting=self._minting)
        if read.minted_id is None:
            return read
        if read.minted_id not in self._minted:
            self._minted[read.minted_id] = None
            return read
        ids = (read.minted_id, *read.session_ids)
        return structs.replace(
            read, session_ids=ids, minted_id=None, names_session=True, starts=True
        )


def dialogue_of(pairs: Iterable[tuple[str, str]]) -> str | None:
    """Return the name that a client gives a conversation, from headers whose names are in lower case."""
    found = dict(pairs)
    return next((found[name][:_MAX_NAME] for name in _DIALOGUES if found.get(name)), None)


def bare_session_id(value: str) -> str:
    """Return the session id of an HTTP header, without whitespace and without the `; Expires=...` of an answer."""
    return _EXPIRES.sub("", value).strip(" \t")


def _first(texts: list[tuple[str, str]], wanted: str) -> str | None:
    return next((value for name, value in texts if name == wanted), None)


def _is_true(texts: list[tuple[str, str]], names: frozenset[str]) -> bool:
    return any(name in names and value.strip().lower() == "true" for name, value in texts)
