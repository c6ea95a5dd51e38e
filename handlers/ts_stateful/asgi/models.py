"""The models of one server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from ts_stateful.asgi.model import ModelFront
from ts_stateful.frontend.metrics.prometheus import FrontMetrics
from ts_stateful.principals.authenticator import Call
from ts_stateful.protocol.errors import EngineUnavailable, ModelNotFound, StatefulError

__all__ = ["Models"]

_DRAINING = "the server takes no new sessions now, because it drains; try again later"
_POLL_S = 0.05
_ATTACH_S = 2.0  # to engines that run


class Models:
    """Models by name, in the order in which they were given; the first one is the default."""

    def __init__(self, models: Sequence[ModelFront]) -> None:
        self._models = {model.name: model for model in models}
        # Those that paths of OpenAI's API reach; a model with recurrent state refuses them, if there is nothing else.
        language = [model for model in models if model.config.state is None]
        self.of_openai = language or list(models)
        self.is_draining = self._is_stopping = False
        self.metrics: FrontMetrics | None = None

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[ModelFront]:
        return iter(self._models.values())

    @property
    def is_ready(self) -> bool:
        """Return True if every model answers, and the server is not about to stop."""
        return not self.is_draining and all(model.is_ready for model in self)

    async def find(self, name: str | None = None, version: str | None = None) -> ModelFront:
        """Return the model of this name, or the first one.

        Raises:
            ModelNotFound: there is none, or it has another version.
            EngineUnavailable: it is still being loaded. A front that starts again waits for running engines first.
        """
        found = self.get(name, version)
        if not await found.has_started(_ATTACH_S):
            raise EngineUnavailable("the model is being loaded; try again later", retry_after_s=1.0)
        return found

    async def find_named(self, name: str) -> ModelFront:
        """Return the model that an OpenAI client names, or whose adapter it names. Raises as `find` does."""
        owners = (model.name for model in self if name in model.config.handler.adapters)
        return await self.find(name if name in self._models else next(owners, name))

    def get(self, model: str | None = None, version: str | None = None) -> ModelFront:
        """Return the model of this name, or the first one, loaded or not.

        Raises:
            ModelNotFound: there is none, or it has another version.
        """
        found = next(iter(self)) if model is None else self._models.get(model)
        if found is None:
            known = ", ".join(self._models)
            raise ModelNotFound(
                f"no model {(model or '')[:64]!r}; this server has {known}", field="model"
            )
        if version not in (None, "", found.version):
            raise ModelNotFound(
                f"no version {version[:64]!r} of {found.name}; this server has {found.version}",
                field="version",
            )
        return found

    def refusal_of(self, call: Call, name: str | None = None) -> StatefulError | None:
        """Return the refusal of a call that has no principal at the model of this name, or without a name at any model."""
        found = [each.intake.refusal_of(call) for each in self if name in (None, each.name)]
        return found[0] if all(found) else None

    def count_refusal(self, error: StatefulError, name: str | None = None) -> None:
        """Count a request to the model of this name, or to the first one, that is refused before the model takes it.

        All models that are missing have one label, since clients invent their names.
        """
        if self.metrics is not None:
            lacks = isinstance(error, ModelNotFound) and error.field == "model"
            self.metrics.error("" if lacks else name or next(iter(self)).name, error.code)

    async def start(self, stop: asyncio.Event | None = None) -> bool:
        """Return True when all models are loaded, False if `stop` came first, which ends their loading.

        Raises as `Dispatcher.start` does.
        """
        loading = asyncio.gather(*(model.start() for model in self))
        stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            self.close()
            await asyncio.gather(loading, return_exceptions=True)
            return False
        stopping.cancel()
        await loading
        return True

    def refuse_sessions(self) -> None:
        """Open no more sessions, and be not ready; those that are open go on."""
        self._set_draining(EngineUnavailable(_DRAINING, retry_after_s=1.0))

    def take_sessions(self) -> None:
        """Undo `refuse_sessions`.

        Raises:
            EngineUnavailable: the server is about to stop.
        """
        if self._is_stopping:
            raise EngineUnavailable("the server is about to stop; start another one")
        self._set_draining(None)

    async def drain(self, timeout_s: float) -> None:
        """Refuse sessions for good; return when the requests in flight are answered, or after `timeout_s`."""
        self._is_stopping = True
        self.refuse_sessions()
        for _ in range(round(timeout_s / _POLL_S)):
            if not any(len(model.mailbox) for model in self):
                return
            await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """Disconnect from all engines."""
        for model in self:
            model.close()

    def _set_draining(self, refusal: EngineUnavailable | None) -> None:
        self.is_draining = refusal is not None
        for model in self:
            model.intake.refuse_sessions(refusal)
