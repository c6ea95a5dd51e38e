"""A connection to one model of one server: where sessions are opened.

Owns what a caller says about a connection, and the opening of sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from ts_stateful.client.addresses import (
    grpc_transport,
    http_transport,
    is_sagemaker,
    parse_address,
    sagemaker_transport,
)
from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import MAX_BODY_BYTES
from ts_stateful.client.images import ImageSource, wire_images
from ts_stateful.client.retry import RetryPolicy
from ts_stateful.client.session import Session
from ts_stateful.client.steps import Steps
from ts_stateful.client.transports.transport import Transport
from ts_stateful.client.uploads import fits
from ts_stateful.protocol.answers import HelloAnswer, Opened, Usage
from ts_stateful.protocol.errors import SessionExists, SessionNotFound
from ts_stateful.protocol.requests import Hello, Image, Open
from ts_stateful.protocol.session_ids import check_session_id, new_session_id

__all__ = ["Server", "connect"]

_DEFAULT_POLICY = RetryPolicy()


def connect(
    url: str = "grpc://127.0.0.1:7070",
    *,
    model: str = "chat",
    timeout_s: float = 120.0,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    ca_file: str | Path | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    session_header: str = "ts_request_sequence_id",
    profile: str | None = None,
    policy: RetryPolicy = _DEFAULT_POLICY,
) -> Server:
    """A connection to `model` at `grpc://`, `grpcs://`, `http://` or `https://host:port`; nothing is sent yet.

    Or to an endpoint of SageMaker at `sagemaker://<name>?region=...&profile=...&endpoint_url=...`, whose credentials are
    boto3's business and whose model has no name.

    `timeout_s` is the deadline of every call, and of every whole turn, that does not name its own. `token` is a key of
    TorchServe's token authorization. `headers` go with every request, over gRPC as metadata. `ca_file` holds the
    certificates to trust instead of the system's. `max_body_bytes` is the server's `max_request_size`. `session_header` is the
    name that TorchServe is configured with; over gRPC it is metadata, for proxies to route by. `profile` saves a gRPC
    connection the question how to talk to the server.

    Raises:
        ValueError: the URL, the profile or the session header cannot be meant.
        ClientError: for SageMaker, boto3 is not installed.
    """
    transport: Transport
    if is_sagemaker(url) and (token or headers or profile):
        raise ValueError("token, headers and profile are not for SageMaker: boto3 signs requests")
    if is_sagemaker(url):
        transport = sagemaker_transport(url, max_body_bytes=max_body_bytes, ca_file=ca_file)
        return Server(Calls(transport, timeout_s, policy))
    sent = {**(headers or {}), **({} if token is None else {"Authorization": f"Bearer {token}"})}
    address = parse_address(url)
    if address.is_grpc:
        transport = grpc_transport(
            address,
            model,
            sent,
            max_body_bytes=max_body_bytes,
            ca_file=ca_file,
            profile=profile,
            header=session_header,
        )
    else:
        transport = http_transport(
            address,
            model,
            sent,
            max_body_bytes=max_body_bytes,
            ca_file=ca_file,
            header=session_header,
        )
    return Server(Calls(transport, timeout_s, policy))


class Server:
    """A connection; leaving its `with` block closes it, but not the sessions on the server."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def hello(self, timeout_s: float | None = None) -> HelloAnswer:
        """Who serves, in which profile, within which limits."""
        return self._calls.call(Hello(), HelloAnswer, timeout_s)

    def open(
        self,
        *,
        images: Iterable[ImageSource] = (),
        system: str | None = None,
        ttl_s: float | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        reopen: bool = False,
        timeout_s: float | None = None,
    ) -> Session:
        """Opens a session; images and the system prompt are processed before this returns.

        Images are paths, URLs or bytes. Without a `session_id` the session gets a new one of 128 random bits. With `reopen`, a
        prompt that finds the session expired or lost opens it again under a new id, with the same images and system prompt but
        without its turns, and runs there.

        Images that are too large for a request go with the session's first prompt, uploaded in parts: what is wrong with them,
        that prompt tells, and its first piece takes longer. The conversation is the same, also after a `fork` or a `rewind`.

        Raises:
            StatefulError: the server refuses, for instance `TooManySessions` or `MediaInvalid`.
            ClientError: the server could not be asked, or not in time.
            OSError: an image file cannot be read.
        """
        # Made here and not by the server, so that an `open` whose answer was lost can be repeated and leaves nothing behind.
        name = new_session_id() if session_id is None else check_session_id(session_id)
        command = Open(
            session_id=name,
            system=system,
            images=wire_images(images),
            ttl_s=ttl_s,
            metadata=dict(metadata or {}),
        )
        first_images: tuple[Image, ...] = ()
        if not fits(command, self._calls.transport.max_body_bytes):
            first_images = command.images
            command = msgspec.structs.replace(command, images=())

        # An id of somebody's choice may have been open before.
        lost = partial(self._opened_unheard, command, timeout_s)
        applied = (SessionExists, lost) if session_id is None else None
        opened = self._calls.call(command, Opened, timeout_s, applied=applied)
        again = partial(self._open_again, command) if reopen else None
        return Session(
            self._calls,
            opened.session_id,
            opened=opened,
            num_turns=0,
            reopen=again,
            first_images=first_images,
        )

    def _opened_unheard(self, command: Open, timeout_s: float | None) -> Opened:
        """What the lost answer to an `open` said."""
        try:
            info = self._session(str(command.session_id)).info(timeout_s)
        except SessionNotFound:
            # SageMaker routes by what it has seen: a session whose answer it missed is out of reach for everybody.
            return self._open_again(command, timeout_s)
        return Opened(info.session_id, info.expires_at, Usage(prompt_tokens=info.tokens))

    def _open_again(self, command: Open, timeout_s: float | None) -> Opened:
        again = msgspec.structs.replace(command, session_id=new_session_id())
        return self._calls.call(again, Opened, timeout_s)

    def attach(self, session_id: str, timeout_s: float | None = None) -> Session:
        """A session that is open already, for instance by an earlier process.

        Raises:
            SessionError: it is not, or not any more.
        """
        session = self._session(check_session_id(session_id))
        session.info(timeout_s)
        return session

    def steps(self, session_id: str | None = None, *, resume: bool = False) -> Steps:
        """A sequence of a model with recurrent state. It begins with its first step: nothing is sent yet.

        Without a `session_id` it gets a new one of 128 random bits. `resume` goes on with the open sequence of that id, where
        otherwise a new one takes its place.

        Raises:
            SessionError: there is none to go on with.
        """
        if session_id is None:
            return Steps(self._calls, new_session_id(), num_steps=0)
        name = check_session_id(session_id)
        return Steps(self._calls, name, num_steps=self._session(name).info().turns if resume else 0)

    def _session(self, session_id: str) -> Session:
        return Session(self._calls, session_id, opened=None, num_turns=None)

    def close(self) -> None:
        """Closes the connection, for all threads. Sessions stay open until they are closed or expire."""
        self._calls.transport.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
