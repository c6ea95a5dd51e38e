"""Language models, also those that see or hear, as a kind of model for the engine."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import torch

from ts_stateful.config.schema import Config
from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.engine import SessionEngine
from ts_stateful.engine.services import (
    NO_REPORT,
    DriverLink,
    LoadReport,
    Placement,
    Services,
)
from ts_stateful.engine.waiting import Missing, PendingRequest
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.recompute_cost import RecomputeCost
from ts_stateful.language.decoding import Decoding
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.encoders.loader import MediaFiles
from ts_stateful.language.grammar.compiler import GrammarCompiler, load_vocabulary
from ts_stateful.language.kv.prefix import Prefix
from ts_stateful.language.network.load import Model, load_model
from ts_stateful.language.network.memory import limits_of
from ts_stateful.language.parallel.driver import Driver
from ts_stateful.language.parallel.follower import Follower
from ts_stateful.language.parallel.group import join_ranks
from ts_stateful.language.persistence.persistence import make_persistence
from ts_stateful.language.trial import verify_media
from ts_stateful.language.turns.lifecycle import Turns
from ts_stateful.language.turns.requests import LanguageRequests
from ts_stateful.media.load import MediaLoader
from ts_stateful.protocol.answers import SessionInfo
from ts_stateful.protocol.chat import Discard, Recall, Respond
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.events import Submit
from ts_stateful.protocol.requests import Continue, Fork, Info, Prompt
from ts_stateful.protocol.stats import Stats
from ts_stateful.sessions.session import Session
from ts_stateful.sessions.shared import SharedCache
from ts_stateful.store.threads import started_pool

__all__ = ["LanguageKind", "build_engine", "load_engine", "load_follower"]


_OFF = InvalidRequest("replies are given no form here: handler.structuredOutput is false")


class LanguageKind:
    """Implements `ModelKind` for a model that generates replies."""

    fatal: type[Exception] = torch.AcceleratorError

    def __init__(
        self,
        core: EngineCore[Context],
        model: Model,
        files: MediaFiles,
        grammars: GrammarCompiler,
    ) -> None:
        self.num_parameters = model.num_parameters
        self.persistence = make_persistence(core, model)
        self.turns = Turns(core, model, self.persistence, files, grammars)
        self.requests = LanguageRequests(core, model, self.turns, self.persistence)
        self.decoding = Decoding(core, model, self.turns)
        self._core = core
        self._model = model
        self._grammars = grammars

    def tune(self) -> None:
        """See `ModelKind`; what computes its passes was chosen when the model was loaded, but for guesses."""
        self.decoding.tune()

    def admit(self, request: PendingRequest) -> None:
        """See `ModelKind`."""
        self.requests.handle(request)

    def searches_first(self, message: Submit, session_id: str) -> bool:
        """Return True for a repeated request that creates a session, or may fork one: the store may have that session."""
        creates = message.creates_session or session_id != message.command.session_id
        return creates and message.is_retry

    def adopt(self, session_id: str, found: Session[Context], *, in_use: bool) -> Missing | None:
        """See `ModelKind`."""
        self._core.table.adopt(found, in_use=in_use)
        return None

    def reads(self, message: Submit, session: Session[Context]) -> bool:
        """See `ModelKind`. A turn that follows the last one is written, one that follows an earlier one is copied first."""
        command = message.command
        if isinstance(command, Respond):
            follows_last = command.after in (None, len(session.state.turns))
            return command.forks or message.ephemeral or not follows_last
        if isinstance(command, Prompt) and command.turn is not None:
            return command.turn <= len(session.state.turns)  # it is answered from its record
        reads = isinstance(command, Info | Continue | Fork | Recall | Discard)
        return reads or message.creates_session  # which the session that is here may forbid

    def drop(self, request_id: str) -> None:
        """See `ModelKind`."""
        self._core.waiting.drop(request_id)
        self.turns.waiters.drop(request_id)

    def set_away(self, away: bool) -> None:
        """See `ModelKind`."""
        self.turns.waiters.set_away(away)

    def tick(self) -> None:
        """See `ModelKind`."""
        self.turns.tick()
        self._grammars.tick()

    def next_deadline(self) -> float | None:
        """See `ModelKind`."""
        deadlines = (self.turns.waiters.next_deadline(), self._grammars.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    @property
    def busy(self) -> bool:
        """See `ModelKind`."""
        return len(self.turns.scheduler) > 0

    def step(self) -> None:
        """See `ModelKind`."""
        self.decoding.step()

    def stats(self) -> Stats:
        """See `ModelKind`."""
        encoder, offload = self._model.encoder, self.persistence.offload
        return Stats(
            turns_in_progress=len(self.turns.waiters),
            tokens_generated=self.decoding.num_tokens,
            tokens_drafted=self.decoding.drafter.num_drafted,
            tokens_accepted=self.decoding.drafter.num_accepted,
            images_encoded=encoder.num_encoded if encoder else 0,
            shared_hits=self._core.shared.num_found,
            shared_bytes=self._core.shared.num_bytes,
            spilled_bytes=offload.num_bytes if offload else 0,
            spill_reads=offload.num_read if offload else 0,
            spill_failures=offload.num_failed if offload else 0,
            upload_bytes=self.requests.uploads.num_bytes,
            implicit_sessions=len(self.turns.implicit),
            implicit_bytes=self.turns.implicit.num_bytes,
            implicit_continued=self.turns.implicit.num_continued,
        )

    def describe(self, session: Session[Context]) -> SessionInfo:
        """See `ModelKind`."""
        return self.requests.describe(session)

    def check_integrity(self) -> None:
        """See `ModelKind`."""
        self.turns.scheduler.check_integrity()
        for one in self.turns.scheduler:
            assert all(other.alike[one] == length for other, length in one.alike.items())
            assert one.num_to_prefill or not one.alike
        self.turns.implicit.check_integrity()
        for session in self._core.table:
            context = session.state
            assert session.busy or context.kv.length <= len(context.log)
            context.check_integrity()


def build_engine(
    model: Model,
    config: Config,
    services: Services,
    files: MediaFiles,
    max_sessions: int | None = None,
    executor: Executor | None = None,
) -> SessionEngine[Context]:
    """Return an engine for a loaded model; `max_sessions` is its share of the configuration's, None: all.

    `executor` compiles grammars, by default on threads of its own.
    """
    shared = SharedCache[MediaInput | Prefix](config.handler.shared_cache_bytes)
    limits = limits_of(model, config, max_sessions)
    core: EngineCore[Context] = EngineCore(config, limits, services, shared, RecomputeCost(model))
    grammars = GrammarCompiler(
        load_vocabulary(model) if config.handler.structured_output else _OFF,
        services.queue,
        executor or started_pool(2, "grammar"),
        core.clock,
    )
    return SessionEngine(core, LanguageKind(core, model, files, grammars))


def load_engine(config: Config, placement: Placement, services: Services) -> SessionEngine[Context]:
    """Load a model and return its engine.

    Raises:
        ConfigError: the model cannot be loaded, or would not be served exactly.
    """
    files = MediaLoader(config.handler.media)
    model = _load(config, placement, services.progress)
    if model.encoder is not None:
        services.progress.begin("starting the decoders of images")
        files.warm_up()
    if services.followers is not None:
        model.forward.driver = Driver(services.followers)
    return build_engine(model, config, services, files, placement.max_sessions)


def load_follower(config: Config, placement: Placement, driver: DriverLink) -> Follower:
    """Load a part of a model that is split, at the same time as the other ranks do.

    Raises:
        ConfigError: as in `load_engine`.
    """
    return Follower(_load(config, placement), driver)


def _load(config: Config, placement: Placement, progress: LoadReport = NO_REPORT) -> Model:
    """Load and verify a model. Every rank of one that is split computes the same passes."""
    device = torch.device(placement.device)
    if placement.ranks is not None:
        join_ranks(placement.ranks, device, config.handler.load_timeout_sec)
    model = load_model(config.handler, Path(placement.model_dir), device, progress)
    model = replace(model, name=placement.model_name)  # as `/v1/models` has it, not the folder's
    if model.encoder is not None:
        progress.begin("checking images")
    verify_media(model)
    return model
