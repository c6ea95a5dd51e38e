"""The settings of `model-config.yaml` as frozen structs.

YAML keys are camelCase and map one to one to the snake_case fields here. An unknown key under `handler:` is an error;
unknown top-level keys belong to TorchServe. `config.check` judges combinations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ts_stateful.config.access import AccessConfig
from ts_stateful.config.limits import ImplicitConfig, LimitsConfig
from ts_stateful.config.media import MediaConfig
from ts_stateful.config.ranges import Count as _Count
from ts_stateful.config.ranges import Duration as _Duration
from ts_stateful.config.ranges import Natural as _Natural
from ts_stateful.config.ranges import Positive as _Positive
from ts_stateful.config.store import StoreConfig
from ts_stateful.protocol.declarations import Input, Output, State, check
from ts_stateful.protocol.profile import Profile
from ts_stateful.protocol.unknown import explained

__all__ = [
    "Config",
    "ConfigError",
    "EngineConfig",
    "FrontendConfig",
    "HandlerConfig",
    "MediaConfig",
    "StateConfig",
    "StoreConfig",
    "load_config",
]


AdapterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]

_REMOVED = {
    "engineGroup": "`ts-stateful serve` (the front asgi) pushes and pulls streams of one model under one name",
}


class ConfigError(ValueError):
    """A setting is unknown, of the wrong type or out of range; the message names the key and the remedy."""


class EngineConfig(AccessConfig, frozen=True, kw_only=True):
    """`handler` of any model: its engine processes and their budgets."""

    model: str = "model"
    """A folder or file in the archive, or a path. For `transformers` models also a hub id."""
    device: str = "auto"
    """`cpu`, `cuda` or `cuda:1`. `auto`: every GPU, else the CPU."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server from a browser, as `https://app.example.com`. `*`: all."""
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """CPU threads of an engine. 0: torch's choice within the container's CPU limit, but one for under 10 million weights."""
    engines: Literal["auto"] | _Count = "auto"
    """Engine processes. `auto`: one per device. Several on one GPU need `deviceCacheBytes`."""
    engine_linger_sec: _Positive = 60.0
    """Seconds that an engine without a worker waits for the next one."""
    drain_sec: _Duration = 20.0
    """Seconds that turns in progress get when an engine has to end or TorchServe has exited."""
    restart_deadline_sec: _Positive = 60.0
    """Seconds that requests wait for an engine that restarts."""
    heartbeat_sec: _Positive = 30.0
    """Seconds without a sign of life after which an engine is killed."""
    load_timeout_sec: _Positive = 600.0
    """Seconds to load the model."""
    device_cache_bytes: _Count | None = None
    """Bytes of sessions on the device. Unset: 80 % of the free memory of a GPU, or of a container's limit, if any."""
    metrics_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """With TorchServe: a port of 127.0.0.1 for the metrics that the other front has at its own; one for each model."""
    limits: LimitsConfig = LimitsConfig()


class HandlerConfig(EngineConfig, frozen=True, kw_only=True):
    """`handler` of a language or vision-language model."""

    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    adapters: dict[AdapterName, str] = {}
    """LoRA adapters by name: folders in the archive, or paths, in the format of `peft`. A session chooses one."""
    trust_remote_code: bool = False
    """Run code from the model's repository."""
    vision: bool = True
    """False: serve the text of a vision-language model, and refuse images."""
    image_tiling: Literal["each", "none"] | None = None
    """Of a model that cuts an image only where it is alone (LLaVA-OneVision): `each` cuts all of a session, `none` none."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: bfloat16 on a GPU, and on a CPU with bfloat16 hardware if the checkpoint is stored in it. Else float32."""
    pack_linears: bool = True
    """On a CPU with AVX2 or AVX-512, multiply few rows at the speed at which weights are read."""
    compact_weights: bool = True
    """Of these layers, hold float32 weights in bfloat16 or float16 if it represents them exactly: half the bytes to read."""
    fused_layers: bool = True
    """Compute all layers of a Llama-like model in one call on a CPU with AVX2 or AVX-512, by fused kernels on a GPU."""
    attention_kernels: bool = True
    """Compute the attention of all sessions' decode steps at once: Triton on a GPU, compiled C++ on a CPU."""
    cuda_graphs: bool = True
    """On a GPU with these kernels, replay steps of few tokens as CUDA graphs where that is faster."""
    speculation: bool = True
    """Guess the next tokens of few replies and verify them in one pass; replies stay the same. On a CPU only."""
    draft_weights: bool = True
    """Guess also by a copy of the model's weights in 8 bits, where it is faster and takes at most an eighth of the memory."""
    stream_interval_sec: Annotated[float, Meta(ge=0, le=10)] = 0.04
    """Seconds between two pieces of a stream. The first piece leaves at once. 0: every token by itself."""
    stateful_sessions: bool = True
    """False: every prompt stands alone, and no session can be opened."""
    strict_requests: bool = False
    """Refuse OpenAI requests with fields that have no effect. False: these are ignored, and named in a header."""
    structured_output: bool = True
    """Give replies a form that a request asks for: JSON, a regular expression, a grammar. False: such requests are refused."""
    chat_template: str | None = None
    """The Jinja template of chats, or the name of its file, `*.jinja`, in the archive. Unset: the model's own."""
    response_template: dict[str, Any] | None = None
    """The response template by which tool calls and reasoning are found in replies. Unset: the model's own, if it has one."""
    reattach_sec: _Positive = 10.0
    """Seconds that a turn goes on after its client has disconnected."""
    tensor_parallel: _Count = 1
    """Devices over which an engine splits the model. Every engine takes so many."""
    context_length: _Count | None = None
    """Tokens of a session. Unset: the model's own limit."""
    prefill_chunk: _Count | None = None
    """Tokens prefilled between two decode steps. Unset: 256 on a CPU, 1,024 on a GPU."""
    shared_cache_bytes: _Natural = 256_000_000
    """The part of the device's bytes for embeddings and system prompts that no session uses any more."""
    host_cache_bytes: _Natural = 0
    """Bytes moved off the device instead of being computed again."""
    implicit_sessions: ImplicitConfig = ImplicitConfig()
    media: MediaConfig = MediaConfig()
    store: StoreConfig = StoreConfig()

    def __post_init__(self) -> None:
        for key, is_set in (("adapters", self.adapters), ("store.kvSpill", self.store.kv_spill)):
            if self.tensor_parallel > 1 and is_set:
                raise ValueError(
                    f"handler.tensorParallel: a split model takes no handler.{key}; leave one of them out"
                )


class StateConfig(EngineConfig, frozen=True, kw_only=True):
    """`handler` of a model with recurrent state, which declares its tensors.

    `model` is a TorchScript file (.pt), an exported program (.pt2), or `file.py:Class` with `arguments` and `weights`.
    """

    inputs: tuple[Input, ...] = ()
    """The tensors of a step."""
    outputs: tuple[Output, ...] = ()
    """The tensors of an answer."""
    states: tuple[State, ...] = ()
    """The tensors that the server keeps between steps. This key makes a model one with recurrent state."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the class."""
    weights: str | None = None
    """A safetensors file in the archive, the `state_dict` of the class."""
    max_rows: _Count = 256
    """Sequences in one forward pass."""
    fixed_rows: bool = False
    """Every pass has exactly `maxRows` rows, for programs that were exported so."""
    fused_layers: bool = True
    """On a CPU with AVX2 or AVX-512, compute single steps of LSTM and GRU layers in float32 by a compiled kernel."""
    host_cache_bytes: _Count | None = None
    """Bytes of states moved off the device. Unset: no bound."""
    commit_every: _Natural = 0
    """Steps between two commits of a sequence's states to the store. 0: sequences end with their engine."""
    store: StoreConfig = StoreConfig()  # for `commit_every`

    def __post_init__(self) -> None:
        check(self.inputs, self.outputs, self.states)
        if self.store.content != "all":
            raise ValueError(
                "handler.store.content: is for language models; of a sequence, inputs and states are written, "
                "and without commitEvery nothing"
            )
        if self.store.kv_spill:
            raise ValueError(
                "handler.store.kvSpill: is for language models; states move to host memory"
            )


class FrontendConfig(Struct, frozen=True, kw_only=True):
    """The keys of TorchServe's frontend that this package uses too."""

    min_workers: _Natural = msgspec.field(name="minWorkers", default=1)
    """Workers at start. One worker stands in front of all engines. More are refused."""
    max_workers: _Natural = msgspec.field(name="maxWorkers", default=1)
    """The same as `minWorkers`."""
    batch_size: _Count = msgspec.field(name="batchSize", default=1)
    """Requests in flight. In the `async` profile 1."""
    max_batch_delay_ms: _Natural = msgspec.field(name="maxBatchDelay", default=100)
    """Milliseconds that TorchServe waits before a first batch."""
    response_timeout_s: _Count = msgspec.field(name="responseTimeout", default=120)
    """Seconds after which TorchServe kills a silent worker."""
    startup_timeout_s: _Count = msgspec.field(name="startupTimeout", default=120)
    """Seconds that a worker may take to start, longer than `handler.loadTimeoutSec`."""
    job_queue_size: _Count = msgspec.field(name="jobQueueSize", default=100)
    """Requests that wait for a place in flight."""
    continuous_batching: bool = msgspec.field(name="continuousBatching", default=False)
    """The `continuous` profile. Exactly one of the three profiles is true."""
    sequence_batching: bool = msgspec.field(name="sequenceBatching", default=False)
    """The `sequence` profile."""
    async_communication: bool = msgspec.field(name="asyncCommunication", default=False)
    """The `async` profile."""
    sequence_max_idle_ms: _Natural = msgspec.field(name="sequenceMaxIdleMSec", default=0)
    """Milliseconds after which an unused session expires. 0: 10 minutes."""
    sequence_timeout_ms: _Natural = msgspec.field(name="sequenceTimeoutMSec", default=0)
    """Milliseconds after which any session expires. 0: an hour, or the idle time if that is longer."""
    max_num_sequence: _Natural = msgspec.field(name="maxNumSequence", default=0)
    """Open sessions, at most `batchSize` in the `sequence` profile. 0: workers times `batchSize`."""
    max_sequence_job_queue_size: _Count = msgspec.field(name="maxSequenceJobQueueSize", default=1)
    """Prompts that wait in one session."""

    @property
    def profile(self) -> Profile:
        """Return the profile of these keys; continuous if they select none."""
        if self.async_communication:
            return Profile.ASYNC
        if self.sequence_batching and not self.continuous_batching:
            return Profile.SEQUENCE
        return Profile.CONTINUOUS

    @property
    def idle_s(self) -> float:
        """Return the idle seconds after which a session expires (TorchServe's unset 0 means 10 minutes here)."""
        return (self.sequence_max_idle_ms or 600_000) / 1000

    @property
    def lifetime_s(self) -> float:
        """Return the seconds after which a used session expires (unset: an hour, or the idle time if longer)."""
        return (self.sequence_timeout_ms or max(3_600_000, self.sequence_max_idle_ms)) / 1000

    @property
    def max_sessions(self) -> int:
        """Return the limit of open sessions (unset: workers times batch size)."""
        return self.max_num_sequence or max(1, self.min_workers) * self.batch_size


class Config(Struct, frozen=True, kw_only=True):
    """All settings of `model-config.yaml` that this package reads."""

    frontend: FrontendConfig = FrontendConfig()
    handler: HandlerConfig = HandlerConfig()
    state: StateConfig | None = None  # `handler` of a model that declares states

    @property
    def engine(self) -> EngineConfig:
        """Return `handler` for any model."""
        return self.state or self.handler

    @property
    def store(self) -> StoreConfig | None:
        """The settings of the store; None if nothing is written."""
        if self.state is None:
            return self.handler.store
        return self.state.store if self.state.commit_every else None


def load_config(document: Mapping[str, Any] | None) -> Config:
    """Load a parsed `model-config.yaml`.

    Raises:
        ConfigError: a key is unknown under `handler:`, or a value has a wrong type or range.
    """
    document = dict(document or {})
    handler = document.pop("handler", None) or {}
    frontend = _convert(document, FrontendConfig, prefix="")
    if isinstance(handler, Mapping):
        _check_keys(handler)
        if "states" in handler:
            return Config(frontend=frontend, state=_convert(handler, StateConfig, prefix="handler"))
    return Config(frontend=frontend, handler=_convert(handler, HandlerConfig, prefix="handler"))


def _check_keys(handler: Mapping[str, Any]) -> None:
    of_states = {*StateConfig.__struct_encode_fields__} - {*HandlerConfig.__struct_encode_fields__}
    for key in handler:
        place = f"model-config.yaml: handler.{key}"
        if key in _REMOVED:
            raise ConfigError(f"{place} was removed: {_REMOVED[key]}; delete the key")
        if key in of_states and "states" not in handler:
            raise ConfigError(f"{place}: is for models that declare `states`, which are missing")


def _convert(document: Any, kind: type[Any], prefix: str) -> Any:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"model-config.yaml: {explained(error, kind, prefix)}") from None
