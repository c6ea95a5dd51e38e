"""Connections to one model of one server, which open sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ts_stateful.client.addresses import parse_address
from ts_stateful.client.calls import Calls
from ts_stateful.client.documents import MAX_BODY_BYTES
from ts_stateful.client.errors import ClientError
from ts_stateful.client.images import ImageSource, fits, wire_audio, wire_images, with_media
from ts_stateful.client.open_session import OpenSession, open_under_new_id
from ts_stateful.client.retry import RetryPolicy
from ts_stateful.client.session import Session
from ts_stateful.client.steps import Steps
from ts_stateful.client.transports.rest import HttpTransport
from ts_stateful.client.transports.rpc import GrpcTransport
from ts_stateful.client.transports.transport import Transport, TransportOptions
from ts_stateful.protocol.answers import Closed, HelloAnswer, Opened
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.requests import Close, Hello, Media, Open
from ts_stateful.protocol.sagemaker import CUSTOM_ATTRIBUTES
from ts_stateful.protocol.session_ids import check_session_id, new_session_id

__all__ = ["Server", "connect"]

_ATTRIBUTES = CUSTOM_ATTRIBUTES.lower()
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
    """Connect to `model` at `grpc://`, `grpcs://`, `http://` or `https://host:port`; nothing is sent yet.

    A URL with `/predictions/<model>`, as the server prints it, names the model itself.
    Or to an endpoint of SageMaker at `sagemaker://<name>?region=...&profile=...&endpoint_url=...`. Its credentials come from
    boto3, and its model has no name.

    `timeout_s` is the deadline of every call, and of every whole turn, that does not name its own. `token` is a signed token
    (`handler.auth`), or a key of TorchServe's token authorization. `headers` go with every request, over gRPC as metadata; a
    token also goes in the message. SageMaker passes both on in its custom attributes only. `ca_file` holds the
    certificates to trust instead of the system's. `max_body_bytes` is the server's `max_request_size`. `session_header` is its
    name in TorchServe's configuration; over gRPC it is metadata, for proxies to route by. `profile` (`continuous`,
    `sequence` or `async`) saves a gRPC connection the request that finds the profile out.

    Raises:
        ValueError: the URL, a header, the token, `ca_file`, the profile or the timeout is not valid.
        ClientError: boto3 is not installed for SageMaker, or socksio for a SOCKS proxy of the environment.
    """
    if url.startswith("sagemaker:") and (
        profile or {*map(str.lower, headers or ())} - {_ATTRIBUTES}
    ):
        raise ValueError(
            f"SageMaker passes no header on but {CUSTOM_ATTRIBUTES}, and has no profile; leave the others out"
        )
    sent = {**(headers or {}), **({} if token is None else {"Authorization": f"Bearer {token}"})}
    options = TransportOptions(
        model=model,
        headers=sent,
        session_header=session_header,
        max_body_bytes=max_body_bytes,
        ca_file=ca_file,
        profile=_profile_of(profile),
    )
    return Server(Calls(_transport(url, options), timeout_s, policy))


def _profile_of(name: str | None) -> Profile | None:
    if name is None:
        return None
    try:
        return Profile(name)
    except ValueError:
        known = ", ".join(profile.value for profile in Profile)
        raise ValueError(f"profile must be one of {known}, not {name!r}") from None


def _transport(url: str, options: TransportOptions) -> Transport:
    try:
        if url.startswith("sagemaker:"):
            from ts_stateful.client.transports import sagemaker  # noqa: PLC0415 - boto3 is optional

            return sagemaker.SageMakerTransport(sagemaker.parse_sagemaker_url(url), options)
        address = parse_address(url)
        if address.is_grpc:
            return GrpcTransport(address, options)
        return HttpTransport(address, options)
    except ImportError as missing:  # of boto3
        raise ClientError(str(missing)) from missing


class Server(contextlib.AbstractContextManager["Server"]):
    """A connection; leaving its `with` block closes it, but not the sessions on the server."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def hello(self, timeout_s: float | None = None) -> HelloAnswer:
        """Ask the server for its version, profile, model and limits."""
        return self._calls.call(Hello(), HelloAnswer, timeout_s)

    def open(
        self,
        *,
        images: Iterable[ImageSource] = (),
        audio: Iterable[ImageSource] = (),
        system: str | None = None,
        ttl_s: float | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, str | int | float | bool | None] | None = None,
        adapter: str | None = None,
        reopen: bool = False,
        timeout_s: float | None = None,
    ) -> Session:
        """Open a session; images or clips of audio and the system prompt are processed before this returns.

        Images and clips are paths, URLs or bytes. Without a `session_id` the session gets a new one of 128 random bits. With
        `reopen`, a prompt that finds the session expired or lost opens it again under a new id and runs there. The new session
        has the same images and system prompt, but not the turns. An `adapter` of the server computes all replies.

        Those that are too large for a request go with the session's first prompt, uploaded in parts. That prompt then raises
        their errors, and its first piece takes longer. The conversation is the same, also after a `fork` or a `rewind`.

        Raises:
            StatefulError: the server refuses, for instance `TooManySessions` or `MediaInvalid`.
            ClientError: the server could not be asked, or not in time.
            OSError: a file cannot be read.
        """
        command = Open(
            session_id=None if session_id is None else check_session_id(session_id),
            system=system,
            images=wire_images(images),
            audio=wire_audio(audio),
            ttl_s=ttl_s,
            metadata=dict(metadata or {}),
            adapter=adapter,
        )
        first_media: tuple[Media, ...] = ()
        if not fits(command, self._calls.transport.max_body_bytes):
            first_media = command.media
            command = with_media(command, ())
        if session_id is None:
            opened = open_under_new_id(self._calls, command, timeout_s)
        else:  # it may have been open before
            opened = self._calls.call(command, Opened, timeout_s)
        return Session(
            OpenSession(
                self._calls,
                opened.session_id,
                opened,
                opening=command if reopen else None,
                first_media=first_media,
            )
        )

    def attach(self, session_id: str, timeout_s: float | None = None) -> Session:
        """Return a session that is open already, for instance by an earlier process.

        Raises:
            SessionError: there is no such session, or it has ended.
        """
        session = Session(OpenSession(self._calls, check_session_id(session_id)))
        session.info(timeout_s)
        return session

    def erase(self, session_id: str, timeout_s: float | None = None) -> None:
        """Close a session, and return after the store has nothing of it. It may have ended already, or be unknown.

        Raises:
            StatefulError, ClientError: the store may still have something; call again.
        """
        command = Close(session_id=check_session_id(session_id), erase=True)
        self._calls.call(command, Closed, timeout_s)

    def steps(self, session_id: str | None = None, *, resume: bool = False) -> Steps:
        """Return a sequence of a model with recurrent state. Its first step begins it: nothing is sent yet.

        Without a `session_id` it gets a new one of 128 random bits. With `resume` it goes on with the open sequence of that id;
        otherwise a new sequence replaces an open one.

        Raises:
            SessionError: there is no sequence to resume.
        """
        if session_id is None:
            return Steps(self._calls, new_session_id(), num_steps=0)
        name = check_session_id(session_id)
        num_steps = OpenSession(self._calls, name).info().turns if resume else 0
        return Steps(self._calls, name, num_steps=num_steps)

    def close(self) -> None:
        """Close the connection, for all threads. Sessions stay open until they are closed or expire."""
        self._calls.transport.close()

    def __exit__(self, *_: object) -> None:
        self.close()
