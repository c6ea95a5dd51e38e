"""The transport over HTTP: one POST for a request, server-sent events for a stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

import httpx

from ts_stateful.client.addresses import Address
from ts_stateful.client.documents import check_size, encode, refusal
from ts_stateful.client.errors import (
    ClientError,
    DeadlineExceeded,
    ProtocolError,
    StreamStalled,
    unreachable,
)
from ts_stateful.client.transports.sse import documents
from ts_stateful.client.transports.transport import Events, Transport, TransportOptions
from ts_stateful.protocol.requests import Command, Prompt

__all__ = ["HttpTransport", "encode_form"]

_CONNECT_TIMEOUT_S = 5.0


class HttpTransport(Transport):
    """POSTs to one model.

    In the sequence profile TorchServe routes by the session header; the body has the session's id too.
    """

    def __init__(self, address: Address, options: TransportOptions) -> None:
        self.max_body_bytes = options.max_body_bytes
        path = address.path
        # `ts-stateful serve` prints the URL of a model; SageMaker has /invocations instead of a path per model.
        if not path.endswith("/invocations") and "/predictions/" not in path:
            path += f"/predictions/{quote(options.model, safe='')}"
        self._url = f"{address.scheme}://{address.authority}{path}"
        self._session_header = options.session_header
        self._http = address.http_client(
            options.ca_file,
            headers=options.headers,
            # Streams hold their connections, and a `cancel` cannot wait for one of them.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )

    def call(
        self, command: Command, timeout_s: float, raw: Mapping[str, bytes] | None = None
    ) -> bytes:
        """Return the answer's body; see `Transport.call`."""
        ends_at = time.monotonic() + timeout_s
        request = self._request(command, timeout_s, timeout_s, raw)
        late = DeadlineExceeded(f"no answer within {timeout_s:g} s (timeout_s)")
        with self._errors(late):
            response = self._http.send(request, stream=True)
            with contextlib.closing(response):
                body = b"".join(_until(ends_at, response.iter_bytes(), late))
        if not response.is_success:
            raise refusal(response.status_code, body, response.headers.get("Retry-After"))
        return body

    def stream(self, command: Prompt, timeout_s: float, stall_s: float) -> Events:
        """Yield the data of the events as they come; see `Transport.stream`.

        A stream that falls silent just before its deadline may overrun it by up to `stall_s`.
        """
        silence: ClientError = StreamStalled(f"no event for {stall_s:g} s")
        if timeout_s <= stall_s:
            silence = DeadlineExceeded(f"no event within {timeout_s:g} s (timeout_s)")
        ends_at = time.monotonic() + timeout_s
        late = DeadlineExceeded(f"no end of the turn within {timeout_s:g} s (timeout_s)")
        request = self._request(command, timeout_s, min(stall_s, timeout_s))
        with self._errors(silence):
            response = self._http.send(request, stream=True)
        with contextlib.closing(response):
            if not response.is_success:
                with self._errors(silence):
                    body = response.read()
                raise refusal(response.status_code, body, response.headers.get("Retry-After"))
            with self._errors(silence):
                chunks = _until(ends_at, response.iter_bytes(), late)
                yield from documents(response.headers.get("Content-Type", ""), chunks)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _request(
        self,
        command: Command,
        timeout_s: float,
        read_s: float,
        raw: Mapping[str, bytes] | None = None,
    ) -> httpx.Request:
        body = encode(command)
        check_size(len(body) + sum(map(len, (raw or {}).values())), self.max_body_bytes)
        headers = {self._session_header: command.session_id} if command.session_id else {}
        connect_s = min(timeout_s, _CONNECT_TIMEOUT_S)
        timeout = httpx.Timeout(timeout_s, connect=connect_s, read=read_s)
        headers["Content-Type"] = "application/json"
        if raw:
            body, headers["Content-Type"] = encode_form(body, raw)
        return self._http.build_request(
            "POST", self._url, content=body, headers=headers, timeout=timeout
        )

    @contextlib.contextmanager
    def _errors(self, silence: ClientError) -> Iterator[None]:
        """Raise httpx's errors as this package's, and `silence` if the server is silent for too long."""
        try:
            yield
        except httpx.ReadTimeout:
            raise silence from None
        except (httpx.WriteTimeout, httpx.PoolTimeout):
            raise DeadlineExceeded(
                f"{self._url}: the request could not be sent within its deadline (timeout_s)"
            ) from None
        except httpx.DecodingError as error:
            raise ProtocolError(f"{self._url}: {error}") from None
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise unreachable(f"{self._url}: {reason}") from None


def _until(ends_at: float, chunks: Iterable[bytes], late: ClientError) -> Iterator[bytes]:
    """Yield the chunks until the deadline. httpx's own timeout is for one chunk, also for a comment without data."""
    for chunk in chunks:
        if time.monotonic() > ends_at:
            raise late
        yield chunk


def encode_form(document: bytes, raw: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Encode a form: the document as part `data`, raw inputs as parts of their names. Return it with its content type."""
    files = {"data": (None, document, "application/json")}
    files |= {name: (None, value, "application/octet-stream") for name, value in raw.items()}
    request = httpx.Request("POST", "http://form", files=files)
    return request.read(), request.headers["Content-Type"]
