"""TorchServe's management API for one model: describe, scale, register and unregister it.

`customized=true` is never sent: in the continuous profile TorchServe 0.12.0 hands such a request out again for ever, and
no other request gets through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct, field

from ts_stateful.client.addresses import parse_address
from ts_stateful.client.documents import refusal
from ts_stateful.client.errors import DeadlineExceeded, ProtocolError, ServerUnreachable

__all__ = ["Description", "Management", "ModelWorker", "Readiness"]

_ANSWER_S = 10.0  # for requests that need no worker
_CONNECT_S = 5.0

_Answer = TypeVar("_Answer")


class ModelWorker(Struct, frozen=True):
    """A worker in TorchServe's view: `READY`, or `UNLOADING` while it starts and after it died."""

    id: str
    status: str
    pid: int


class Description(Struct, frozen=True, rename="camel"):
    """TorchServe's description of a model. It is the same for the async profile and for no batching."""

    model_name: str
    model_url: str
    min_workers: int
    max_workers: int
    batch_size: int
    startup_timeout: int = 120  # s
    continuous_batching: bool = False
    stateful: bool = False  # `sequenceBatching`
    workers: tuple[ModelWorker, ...] = ()
    queue: dict[str, int] = field(default_factory=dict, name="jobQueueStatus")

    @property
    def is_ready(self) -> bool:
        """Return True if TorchServe reports all workers as ready."""
        return all(worker.status == "READY" for worker in self.workers)

    @property
    def waiting(self) -> int:
        """Return the number of requests that no worker has taken yet; requests of sequences are not counted."""
        return self.queue.get("pendingRequests", 0)


class Readiness(Struct, frozen=True):
    """The state of a front without TorchServe (`/readyz`), that of each model, and the steps of those that load."""

    status: str
    models: dict[str, str]
    loading: dict[str, Any] = field(default_factory=dict)


class _Model(Struct, frozen=True, rename="camel"):
    model_name: str


class _Models(Struct, frozen=True):
    models: list[_Model]


class Management:
    """The management API at a URL; `token` is the management key of TorchServe's token authorization, which may change.

    The certificate of a process that this one `started` is trusted, as it may be for a name that others use; no proxy is asked.
    Every method raises `ServerUnreachable`, `DeadlineExceeded`, `ServerRefused` or `ProtocolError`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str | None] | None = None,
        ca_file: str | Path | None = None,
        started: bool = False,
    ) -> None:
        address = parse_address(url)
        if address.is_grpc:
            raise ValueError(f"the management API needs an HTTP URL, not {url!r}")
        self.url = url
        self.is_local = not address.through_proxy
        self._token = token
        self._http = address.http_client(
            ca_file,
            base_url=f"{address.scheme}://{address.authority}{address.path}",
            auth=self._authorized,
            **({"verify": False, "trust_env": False} if started else {}),
        )

    def models(self) -> list[str]:
        """Return the names of all registered models."""
        answer = self._ask("GET", "/models", _ANSWER_S)
        return [model.model_name for model in _converted(answer, _Models).models]

    def describe(self, model: str) -> Description:
        """Describe the default version of a model."""
        answer = self._ask("GET", _path(model), _ANSWER_S)
        (description,) = _converted(answer, tuple[Description])
        return description

    def readiness(self) -> Readiness | None:
        """Return the readiness of a front without TorchServe; None from TorchServe, which reports none."""
        with self._errors(_ANSWER_S), contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(self._http.get("/readyz").content, type=Readiness)
        return None

    def version(self, model: str) -> str:
        """Return the version of a model of a front without TorchServe."""
        return str(self._ask("GET", _path(model), _ANSWER_S)[0]["modelVersion"])

    def measures(self, url: str, model: str) -> bool:
        """Return True if a front without TorchServe has metrics of the model at this URL."""
        with self._errors(_ANSWER_S):
            text = httpx.get(url, trust_env=not self.is_local).text
        return f'ts_stateful_sessions_limit{{model="{model}"}}' in text

    def scale(self, model: str, num_workers: int, timeout_s: float) -> None:
        """Set the number of workers; return when all of them are ready."""
        workers = str(num_workers)
        params = {"min_worker": workers, "max_worker": workers, "synchronous": "true"}
        self._ask("PUT", _path(model), timeout_s, params)

    def unregister(self, model: str) -> None:
        """Remove the model; status 405 if TorchServe's model API is off (`enable_model_api`)."""
        self._ask("DELETE", _path(model), _ANSWER_S)

    def register(self, model: str, url: str, timeout_s: float) -> None:
        """Register an archive of the model store, or at a URL, with one worker; return when it is ready."""
        params = {"url": url, "model_name": model, "initial_workers": "1", "synchronous": "true"}
        self._ask("POST", "/models", timeout_s, params)

    def runs(self, worker: ModelWorker) -> bool | None:
        """Return True if a worker has a process; None if it is on another machine. Sends no request."""
        if not self.is_local:
            return None
        try:
            return b"model_service_worker" in Path(f"/proc/{worker.pid}/cmdline").read_bytes()
        except OSError:
            return False

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _authorized(self, request: httpx.Request) -> httpx.Request:
        token = self._token() if callable(self._token) else self._token
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    def _ask(
        self, method: str, path: str, timeout_s: float, params: dict[str, str] | None = None
    ) -> Any:
        timeout = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        with self._errors(timeout_s):
            response = self._http.request(method, path, params=params, timeout=timeout)
            if response.is_success:
                return msgspec.json.decode(response.content)
        raise refusal(response.status_code, response.content)

    @contextlib.contextmanager
    def _errors(self, timeout_s: float) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerUnreachable(f"{self.url}: {error or 'no connection'}") from None
        except httpx.TimeoutException:
            raise DeadlineExceeded(f"{self.url}: no answer within {timeout_s:g} s") from None
        except httpx.TransportError as error:
            raise ServerUnreachable(f"{self.url}: {error or type(error).__name__}") from None
        except (httpx.DecodingError, msgspec.DecodeError, UnicodeDecodeError):
            raise ProtocolError(
                f"{self.url} does not answer as TorchServe's management API; check the URL"
            ) from None


def _converted(answer: Any, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(
            f"not an answer of TorchServe's management API; check the URL: {error}"
        ) from None


def _path(model: str) -> str:
    return f"/models/{quote(model, safe='')}"
