"""The transport over SageMaker's runtime API, by boto3: InvokeEndpoint, and InvokeEndpointWithResponseStream for streams.

The documents are those of every other transport. The service routes by `SessionId` and reads no document.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from ts_stateful.client.addresses import is_this_machine
from ts_stateful.client.documents import check_size, encode, refusal
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    RequestTooLarge,
    ServerRefused,
    ServerUnreachable,
    StreamStalled,
)
from ts_stateful.client.transports.rest import encode_form
from ts_stateful.client.transports.sse import documents
from ts_stateful.client.transports.transport import Events, Transport, TransportOptions
from ts_stateful.protocol.errors import (
    InvalidRequest,
    SessionClosed,
    SessionNotFound,
    StatefulError,
)
from ts_stateful.protocol.requests import Close, Command, Fork, Open, Prompt, Step
from ts_stateful.protocol.sagemaker import (
    CUSTOM_ATTRIBUTES,
    MAX_BODY_BYTES,
    MAX_CUSTOM_ATTRIBUTES,
    NEW_SESSION,
    is_endpoint_name,
    is_session_id,
)

try:
    import boto3
    from botocore import UNSIGNED
    from botocore import exceptions as aws
    from botocore.config import Config
    from botocore.eventstream import ParserError
    from urllib3 import exceptions as sockets
except ImportError as missing:
    raise ImportError(
        "SageMaker needs boto3: pip install 'torchserve-stateful[sagemaker]'"
    ) from missing

__all__ = ["SageMakerAddress", "SageMakerTransport", "parse_sagemaker_url"]

_ATTRIBUTES = CUSTOM_ATTRIBUTES.lower()
_CONNECT_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 64
_NO_REGION = "us-east-1"  # for this machine, if the URL and the environment name none
_THROTTLED = ("ThrottlingException", "Throttling", "TooManyRequestsException")


class SageMakerAddress(NamedTuple):
    """An endpoint; boto3 finds the values that are None (https://boto3.amazonaws.com/v1/documentation/api/latest/guide/configuration.html)."""

    endpoint: str
    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None

    @property
    def is_local(self) -> bool:
        """Return True for this machine: requests to it are unsigned and use no proxy."""
        return is_this_machine(urlsplit(self.endpoint_url or "").hostname or "")


def parse_sagemaker_url(url: str) -> SageMakerAddress:
    """Parse `sagemaker://<name>?region=...&profile=...&endpoint_url=...`.

    Raises:
        ValueError: the URL is not of this form.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    # `hostname` would be in lower case.
    if not is_endpoint_name(parts.netloc) or parts.path.strip("/") or parts.fragment:
        raise ValueError(f"{url!r} is not a URL like sagemaker://endpoint-name?region=us-east-1")
    unknown = options.keys() - set(SageMakerAddress._fields[1:])
    if unknown:
        known = ", ".join(SageMakerAddress._fields[1:])
        raise ValueError(
            f"{url!r} has unknown options: {', '.join(sorted(unknown))}; known are {known}"
        )
    return SageMakerAddress(parts.netloc, **options)


class SageMakerTransport(Transport):
    """Calls of one endpoint; of the options it uses `max_body_bytes`, `ca_file` and the headers that name a principal.

    A timeout belongs to a boto3 client, so there is one client for each power of two seconds. A deadline may be overrun by
    its own length.
    """

    def __init__(self, address: SageMakerAddress, options: TransportOptions) -> None:
        self.max_body_bytes = min(options.max_body_bytes, MAX_BODY_BYTES)
        self._address = address
        self._ca_file = None if options.ca_file is None else str(options.ca_file)
        self._attributes = _attributes(options.headers)
        self._session: Any = None
        self._clients: dict[int, Any] = {}
        self._lock = threading.Lock()

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """Return the answer's body; see `Transport.call`."""
        request = self._request(command, raw)
        with self._errors(
            command, DeadlineExceeded(f"no answer within {timeout_s:g} s (timeout_s)")
        ):
            answer = self._client(timeout_s).invoke_endpoint(**request)
            return bytes(answer["Body"].read())

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """Yield the documents in the payload's parts, which are cut anywhere; see `Transport.stream`."""
        silence: ClientError = StreamStalled(f"no event for {stall_s:g} s")
        if timeout_s <= stall_s:
            silence = DeadlineExceeded(f"no event within {timeout_s:g} s (timeout_s)")
        request = self._request(command)
        with self._errors(command, silence):
            client = self._client(min(stall_s, timeout_s))
            answer = client.invoke_endpoint_with_response_stream(**request)
        with contextlib.closing(answer["Body"]) as parts, self._errors(command, silence):
            chunks = (part["PayloadPart"]["Bytes"] for part in parts if "PayloadPart" in part)
            yield from documents(answer.get("ContentType", ""), chunks)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _client(self, timeout_s: float) -> Any:
        exponent = math.ceil(math.log2(timeout_s))
        with self._lock:
            if exponent not in self._clients:
                self._clients[exponent] = self._make_client(2.0**exponent)
            return self._clients[exponent]

    def _make_client(self, read_timeout_s: float) -> Any:
        """Make a client that waits no longer than this. It does not retry: `Calls` does."""
        address = self._address
        if self._session is None:
            self._session = boto3.Session(region_name=address.region, profile_name=address.profile)
        config = Config(
            connect_timeout=min(read_timeout_s, _CONNECT_TIMEOUT_S),
            read_timeout=read_timeout_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=_MAX_CONNECTIONS,
            signature_version=UNSIGNED if address.is_local else None,
            proxies={} if address.is_local else None,
        )
        return self._session.client(
            "sagemaker-runtime",
            region_name=self._session.region_name or (_NO_REGION if address.is_local else None),
            endpoint_url=address.endpoint_url,
            verify=self._ca_file,
            config=config,
        )

    def _request(self, command: Command, raw: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        body, content_type = encode(command), "application/json"
        if raw:
            body, content_type = encode_form(body, raw)
        check_size(len(body), self.max_body_bytes)
        request = {
            "EndpointName": self._address.endpoint,
            "Body": body,
            "ContentType": content_type,
            **self._attributes,
        }
        session_id = _session_of(command)
        return request if session_id is None else {**request, "SessionId": session_id}

    @contextlib.contextmanager
    def _errors(self, command: Command, silence: ClientError) -> Iterator[None]:
        """Raise boto3's errors as this package's, and `silence` if the service is silent for too long."""
        try:
            yield
        except (aws.EventStreamError, ParserError) as error:
            raise ServerUnreachable(str(error)) from None
        except aws.ClientError as error:
            raise self._refusal(command, error.response) from None
        except (aws.ReadTimeoutError, sockets.ReadTimeoutError):
            raise silence from None
        except (aws.HTTPClientError, aws.ConnectionError, sockets.HTTPError, OSError) as error:
            raise ServerUnreachable(str(error)) from None
        except aws.IncompleteReadError as error:
            raise ServerUnreachable(str(error)) from None
        except aws.BotoCoreError as error:  # no credentials, no region, no such profile
            raise ClientError(str(error)) from None

    def _refusal(
        self, command: Command, response: Mapping[str, Any]
    ) -> StatefulError | ClientError:
        code, message = response["Error"]["Code"], response["Error"]["Message"]
        status = int(response["ResponseMetadata"]["HTTPStatusCode"])
        if code == "ModelError":
            return _model_error(response)
        if status == 413:
            return RequestTooLarge(
                f"the request is too large: SageMaker takes {MAX_BODY_BYTES:,} bytes; send less: {message}"
            )
        # The endpoint's name may contain the word, too.
        about_session = "session" in message.replace(self._address.endpoint, "").lower()
        if code == "ValidationError" and command.session_id and about_session:
            # The service keeps no record of how a session ended. For `close`, ended is the aim.
            return (SessionClosed if isinstance(command, Close) else SessionNotFound)(message)
        refused = ServerRefused(
            f"{message} ({code})", status=429 if code in _THROTTLED else status, kind=code
        )
        refused.retryable = refused.retryable or status >= 500
        return refused


def _attributes(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the member of requests with the custom attributes; a token is one of them."""
    sent = {name.lower(): value for name, value in headers.items()}
    pairs = [sent[_ATTRIBUTES]] if _ATTRIBUTES in sent else []
    if "authorization" in sent:
        pairs.append(f"token={sent['authorization'].removeprefix('Bearer ')}")
    value = ",".join(pairs)
    if len(value) > MAX_CUSTOM_ATTRIBUTES:
        raise ValueError(
            f"SageMaker takes custom attributes of {MAX_CUSTOM_ATTRIBUTES:,} characters, and these have {len(value):,};"
            " use a shorter token, for instance one signed with ES256"
        )
    return {"CustomAttributes": value} if value else {}


def _session_of(command: Command) -> str | None:
    """Return the id that the service routes by; a command that begins a session names it only in its document.

    Raises:
        InvalidRequest: the service would not take the id.
    """
    new_id = command.new_session_id if isinstance(command, Fork) else None
    for field, session_id in (("session_id", command.session_id), ("new_session_id", new_id)):
        if session_id is not None and not is_session_id(session_id):
            raise InvalidRequest(
                f"{session_id!r} is not an id for SageMaker: use letters and digits, with hyphens between",
                field=field,
            )
    opens = isinstance(command, Open) or (isinstance(command, Step) and command.start)
    return NEW_SESSION if opens else command.session_id


def _model_error(response: Mapping[str, Any]) -> StatefulError | ClientError:
    """Convert the container's error. Status 0 is a timeout; the container works on, so the turn is asked for again."""
    status, original = int(response["OriginalStatusCode"]), response["OriginalMessage"]
    if status == 0:
        return StreamStalled(f"SageMaker's time limit passed: {original}")
    error = refusal(status, original.encode())
    if isinstance(error, ServerRefused):
        error.retryable = error.retryable or status >= 500
    return error
