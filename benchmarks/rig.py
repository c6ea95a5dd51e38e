"""The shared resources of the stages: model, servers, floor and samples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from benchmarks.bare_steps import BareSteps
from benchmarks.clients.conversation import Client
from benchmarks.clients.llama import LlamaClient
from benchmarks.clients.recompute import RecomputeClient
from benchmarks.clients.stateful import GrpcClient, HttpClient
from benchmarks.clients.vllm import VllmClient
from benchmarks.clients.whole_list import WholeListClient
from benchmarks.crowded_engine import CrowdedEngine
from benchmarks.dialogues_alone import DialoguesAlone
from benchmarks.engine_alone import EngineAlone
from benchmarks.family_steps import FamilySteps
from benchmarks.fleet import (
    CHAT_ASYNC_ARCHIVE,
    RECOMPUTE_ARCHIVE,
    TEXT_ARCHIVE,
    Fleet,
)
from benchmarks.floor import Floor
from benchmarks.form_steps import FormSteps
from benchmarks.inputs import Inputs
from benchmarks.llama_server import LlamaServer
from benchmarks.model import build
from benchmarks.names import (
    ASGI,
    ASYNC_HTTP,
    GRPC,
    HTTP,
    IMPLICIT,
    LLAMA,
    RECOMPUTE,
    TEXT_ASGI,
    TEXT_HTTP,
    VLLM,
)
from benchmarks.own_process import OwnProcess
from benchmarks.plan import Plan
from benchmarks.progress import Progress
from benchmarks.recurrent import build as build_recurrent
from benchmarks.samples import Samples
from benchmarks.servers import pack_chat, pack_recompute
from benchmarks.text_model.held_out import MODEL
from benchmarks.vllm_server import VllmServer
from ts_stateful.serving.server import LocalServer

__all__ = ["Rig", "TextDtypes"]


class TextDtypes(NamedTuple):
    """The dtype of the text model's weights, for all servers, and the one in which ours compute with them."""

    weights: str
    computed: str


class Rig:
    """A context manager: leaving it stops everything. `folder` takes the model, the archives and the logs, and `others` has the
    programs of other servers by their names.

    Servers and processes are started when a stage first needs them.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        threads: int,
        progress: Progress,
        others: Mapping[str, Path],
        text_dtypes: TextDtypes,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.threads = threads
        self.progress = progress
        self.inputs = Inputs()
        self.samples = Samples()
        self._others = others
        self.text_dtypes = text_dtypes
        self._stack = contextlib.ExitStack()

    @cached_property
    def models(self) -> tuple[Path, Path]:
        """The folders of the LLaVA and of its text part."""
        self.progress.say("      building the model")
        (self.folder / "text.gguf").unlink(missing_ok=True)  # of another model
        return build(self.folder / "model", self.text_dtypes.weights)

    @cached_property
    def floor(self) -> OwnProcess:
        """The bare forward passes: a `Floor`."""
        return self._stack.enter_context(OwnProcess(Floor, self.models[0], self.threads))

    @cached_property
    def engine_alone(self) -> OwnProcess:
        """The engine without a server: an `EngineAlone`."""
        return self._stack.enter_context(OwnProcess(EngineAlone, self.models[0], self.threads))

    @cached_property
    def crowded_engine(self) -> OwnProcess:
        """A very small text model with many sessions: a `CrowdedEngine`."""
        folder, most = self.folder / "small", max(self.plan.growth_open)
        return self._stack.enter_context(OwnProcess(CrowdedEngine, folder, most))

    @cached_property
    def form_steps(self) -> OwnProcess:
        """Decode steps of replies with forms: a `FormSteps`."""
        return self._stack.enter_context(OwnProcess(FormSteps, self.threads))

    @cached_property
    def family_steps(self) -> OwnProcess:
        """Decode steps by family: a `FamilySteps`."""
        arguments = (self.threads, self.plan.family_history)
        return self._stack.enter_context(OwnProcess(FamilySteps, *arguments))

    @cached_property
    def dialogues_alone(self) -> OwnProcess:
        """Dialogues with the trained text model: a `DialoguesAlone`."""
        return self._stack.enter_context(OwnProcess(DialoguesAlone, MODEL, self.threads))

    @cached_property
    def recurrent(self) -> Path:
        """The folder of the recurrent model."""
        return build_recurrent(self.folder / "recurrent")

    @cached_property
    def bare_steps(self) -> OwnProcess:
        """Steps without a server: a `BareSteps`."""
        return self._stack.enter_context(OwnProcess(BareSteps, self.recurrent))

    @cached_property
    def llama_server(self) -> LlamaServer:
        """llama.cpp's server for the text part, with default options."""
        self.progress.say("      starting llama-server")
        return self._stack.enter_context(self.start_llama())

    def start_llama(self, *options: str) -> LlamaServer:
        """Return another llama.cpp server, with options, not started yet."""
        model = self.folder / "text.gguf"
        if not model.exists():
            _export_gguf(self.models[1], model)
        return self._llama(model, *options)

    def start_trained_llama(self, *options: str) -> LlamaServer | None:
        """Return llama.cpp's server of the trained text model, not started yet, or None if there is no llama.cpp."""
        if LLAMA not in self._others or not self._others[LLAMA]:
            return None
        return self._llama(self._trained_gguf, *options)

    @cached_property
    def _trained_gguf(self) -> Path:
        return _export_gguf(MODEL, self.folder / "trained.gguf")

    def _llama(self, model: Path, *options: str) -> LlamaServer:
        log = self.folder / f"llama-server{'-'.join(('', *options))}.log"
        return LlamaServer(self._others[LLAMA], model, log, threads=self.threads, options=options)

    @cached_property
    def vllm_server(self) -> VllmServer:
        """vLLM's server for the text part, with default options."""
        self.progress.say("      starting vLLM")
        log = self.folder / "vllm.log"
        server = VllmServer(
            self._others[VLLM],
            self.models[1],
            log,
            threads=self.threads,
            dtype=self.text_dtypes.weights,
        )
        return self._stack.enter_context(server)

    def start(self, systems: Iterable[str]) -> None:
        """Start what serves these systems, all at the same time."""
        self._fleet.start(systems)

    def server_of(self, system: str) -> LocalServer:
        """Return the running server of a system."""
        return self._fleet.of(system)

    def connect(self, system: str) -> Client:
        """Return a connection to a system; the rig closes it."""
        client = self._client(system)
        self._stack.callback(client.disconnect)
        return client

    def _client(self, system: str) -> Client:
        if system == LLAMA:
            return LlamaClient(self.llama_server)
        if system == VLLM:
            return VllmClient(self.vllm_server)
        server = self.server_of(system)
        if system == RECOMPUTE:
            return RecomputeClient(server)
        if system == IMPLICIT:
            return WholeListClient(server)
        if system in (HTTP, ASGI, ASYNC_HTTP, TEXT_ASGI, TEXT_HTTP):
            return HttpClient(server)
        return GrpcClient(server, "continuous" if system == GRPC else "async")

    @cached_property
    def _fleet(self) -> Fleet:
        _ = self.models  # before threads pack them
        return self._stack.enter_context(Fleet(self.folder, self._pack, self.progress))

    def _pack(self, archive: str) -> None:
        folder, threads, (llava, text) = self.folder, self.threads, self.models
        if archive == RECOMPUTE_ARCHIVE:
            pack_recompute(archive, llava, folder, threads=threads)
        elif archive == TEXT_ARCHIVE:
            pack_chat(archive, text, folder, dtype=self.text_dtypes.computed, threads=threads)
        else:
            profile = "async" if archive == CHAT_ASYNC_ARCHIVE else "continuous"
            pack_chat(archive, llava, folder, profile=profile, threads=threads)

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


def _export_gguf(checkpoint: Path, path: Path) -> Path:
    from benchmarks.gguf_export import export  # noqa: PLC0415 - imports for seconds, what few runs need

    return export(checkpoint, path)
