"""Headers of a row: what a request's headers say, and the session headers of its answer.

Owns the names of the headers and what may stand in them: never a client's or the model's text. Knows nothing of bodies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from ts_stateful.config.schema import ConfigError
from ts_stateful.protocol.errors import SessionIdMismatch
from ts_stateful.protocol.events import Event
from ts_stateful.protocol.profile import Profile

__all__ = ["HeaderNames", "RowHeaders", "check_header_names"]

# TorchServe's frontend and its Python side read different variables for the same three names.
_FRONTEND_ID = "TS_HEADER_KEY_SEQUENCE_ID"
_FRONTEND_START = "TS_HEADER_KEY_SEQUENCE_START"
_FRONTEND_END = "TS_HEADER_KEY_SEQUENCE_END"
_BACKEND_ID = "TS_REQUEST_SEQUENCE_ID"
_BACKEND_END = "TS_REQUEST_SEQUENCE_END"
# SageMaker's router knows no other pair of names.
_SAGEMAKER_ID = "x-amzn-sagemaker-session-id"
_SAGEMAKER_CLOSED = "X-Amzn-SageMaker-Closed-Session-Id"

_MINTED_PREFIX = "ts-seq-"
# TorchServe gives every prediction over HTTP a `url_path`, and nothing else.
_PREDICTION_MARK = "url_path"
_HTTP_MARKS = ("host", _PREDICTION_MARK)


def check_header_names(profile: Profile, environ: Mapping[str, str]) -> None:
    """Refuses a name that only TorchServe's frontend would know: every session would then be nobody's.

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
    """How the session headers are called; `ids`, `starts` and `ends` in lower case, any of them may come in."""

    id: str
    end: str
    ids: frozenset[str]
    starts: frozenset[str]
    ends: frozenset[str]

    @classmethod
    def of(cls, context: Any, environ: Mapping[str, str]) -> HeaderNames:
        """The names in TorchServe's context, and those that only its frontend has been told.

        Answers have the names of the context unless those are nobody's choice but the frontend's are.
        """

        def both(name: str, variable: str) -> frozenset[str]:
            return frozenset({name.lower(), environ.get(variable, name).lower()})

        def said(name: str, chosen: str, variable: str) -> str:
            return name if chosen in environ else environ.get(variable, name)

        session_id = said(context.header_key_sequence_id, _BACKEND_ID, _FRONTEND_ID)
        end = said(context.header_key_sequence_end, _BACKEND_END, _FRONTEND_END)
        if session_id.lower() == _SAGEMAKER_ID and not {_BACKEND_END, _FRONTEND_END} & set(environ):
            end = _SAGEMAKER_CLOSED
        return cls(
            id=session_id,
            end=end,
            ids=both(context.header_key_sequence_id, _FRONTEND_ID),
            starts=both(context.header_key_sequence_start, _FRONTEND_START),
            ends=both(context.header_key_sequence_end, _FRONTEND_END),
        )

    def of_answer(self, event: Event) -> dict[str, str]:
        """The session headers that go with an event; ids were validated when they came in."""
        if event.session_id is None:
            return {}
        if event.closed:
            return {self.end: event.session_id}
        if event.opened_until is None:
            return {self.id: event.session_id}
        until = datetime.fromtimestamp(event.opened_until, timezone.utc)
        return {self.id: f"{event.session_id}; Expires={until.strftime('%Y-%m-%dT%H:%M:%SZ')}"}


@dataclass(frozen=True)
class RowHeaders:
    """What the headers of one row say.

    `session_ids` are the different ids that the client sent, `minted_id` is one that TorchServe's frontend made because it
    saw none. `names_session` says that a session header came at all, even one that says "none yet". `path` is what followed the
    version in the URL. `is_describe` is true for the management API alone: a client's own `describe` header comes with a
    prediction.
    `starts` and `ends` say what a client of HTTP says of its sequence (over gRPC TorchServe sets the end header every time).
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

    @classmethod
    def read(cls, headers: Mapping[str, Any], names: HeaderNames, *, minting: bool) -> RowHeaders:
        """Reads a row's headers; `minting` says whether this frontend makes ids of its own.

        The dict also holds an entry for every part of the body, under a name that the client chose; those are dicts, so
        whatever is not a string is not a header.
        """
        texts = [(name.lower(), value) for name, value in headers.items() if isinstance(value, str)]
        is_http = any(name in _HTTP_MARKS for name, _ in texts)
        is_prediction = any(name == _PREDICTION_MARK for name, _ in texts)
        is_describe = ("describe", "True") in texts and not is_prediction
        # Blanks around a header's value are none of it; the id of a gRPC message is told as a header, but is what it is.
        ids = list(
            dict.fromkeys(
                value.strip(" \t") if is_http else value
                for name, value in texts
                if name in names.ids
            )
        )
        minted_id = None
        if minting and any(name in names.starts and value == "true" for name, value in texts):
            # A client's header in another case is one that the frontend has overlooked: it then mints an id beside it.
            minted_id = next((value for value in ids if value.startswith(_MINTED_PREFIX)), None)
        session_ids = tuple(value for value in ids if value and value != minted_id)
        types = [value for name, value in texts if name == "content-type"] if is_http else []
        paths = [value for name, value in headers.items() if name == _PREDICTION_MARK]
        return cls(
            is_http,
            is_describe,
            session_ids,
            minted_id,
            content_type=types[0].partition(";")[0].strip().lower() if types else "",
            starts=is_http and _is_true(texts, names.starts),
            ends=is_http and _is_true(texts, names.ends),
            names_session=any(value != minted_id for value in ids),
            path=paths[0] if paths and isinstance(paths[0], str) else "",
        )

    def sent_back(self) -> RowHeaders:
        """What they say if `minted_id` was made before: a client sends it, and with it a start header of its own."""
        assert self.minted_id is not None
        ids = (self.minted_id, *self.session_ids)
        return replace(self, session_ids=ids, minted_id=None, names_session=True)

    def session_id(self) -> str | None:
        """The id that the client sent.

        Raises:
            SessionIdMismatch: there are two.
        """
        if len(self.session_ids) > 1:
            raise SessionIdMismatch(
                "two session headers name different sessions", field="session header"
            )
        return self.session_ids[0] if self.session_ids else None


def _is_true(texts: list[tuple[str, str]], names: frozenset[str]) -> bool:
    return any(name in names and value.strip().lower() == "true" for name, value in texts)
