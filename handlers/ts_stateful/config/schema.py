"""The settings of `model-config.yaml` as frozen structs.

YAML keys are camelCase and map one to one to the snake_case fields here. An unknown key under `handler:` is an error;
unknown top-level keys belong to TorchServe. `config.check` judges combinations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ts_stateful.protocol.declarations import Input, Output, State, check
from ts_stateful.protocol.profile import Profile

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

_Positive = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]
_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


class ConfigError(ValueError):
    """A setting is unknown, of the wrong type or out of range; the message names the key and the remedy."""


class MediaConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`handler.media`: the allowed images and their sources. Safe by default."""

    allowed_schemes: tuple[Literal["https", "http", "data"], ...] = ("https", "data")
    # Empty: every public host; `*.example.com` matches subdomains.
    allowed_hosts: tuple[str, ...] = ()
    allowed_buckets: tuple[str, ...] = ()  # of S3, as `allowed_hosts`; empty: none
    allow_private_addresses: bool = False  # loopback, private, link-local (cloud metadata), ...
    max_bytes: _Count = 20_000_000
    max_pixels: _Count = 40_000_000
    max_images: _Count = 8  # per request
    max_upload_bytes: _Count = 500_000_000  # of all sessions of an engine together
    timeout_sec: _Positive = 10.0  # for one image, all redirects and bytes included
    max_redirects: Annotated[int, Meta(ge=0)] = 3
    workers: _Count = 4  # images fetched and decoded at the same time


class EngineConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`handler` of any model: its engine processes and their budgets."""

    model: str = "model"  # a folder or file in the archive, or a path; of `transformers` models also a hub id
    device: str = "auto"
    # Of an engine on a CPU; 0: torch's choice, one for a small model.
    threads: Annotated[int, Meta(ge=0)] = 0
    engines: Literal["auto"] | _Count = "auto"
    # Registrations of this name in one TorchServe share engines and sessions.
    engine_group: Annotated[str, Meta(pattern=_NAME)] | None = None
    # An engine whose worker is gone waits this long for the next.
    engine_linger_sec: _Positive = 60.0
    # An engine that is to end may finish what runs, for this long.
    drain_sec: Annotated[float, Meta(ge=0)] = 20.0
    restart_deadline_sec: _Positive = 60.0  # requests wait this long for an engine that restarts
    heartbeat_sec: _Positive = 30.0  # an engine that shows no sign of life for this long is killed
    load_timeout_sec: _Positive = 600.0
    # Of what sessions keep; None: no bound on a CPU, 80 % of what is free on a GPU.
    device_cache_bytes: _Count | None = None


class StoreConfig(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """`handler.store`: the place where sessions are written, and the reaction to failures.

    Keys come from environment variables, credentials from the URL or from the backend's client.
    """

    # file:///folder, redis://, rediss://, s3://bucket/prefix; none: sessions end with their engine; unset: a local folder
    url: str | None = None
    # required: a turn that cannot be written fails; best_effort: it is answered, and can be lost with its engine
    policy: Literal["required", "best_effort"] = "required"
    # all: a session goes on elsewhere; text: one with images does not; none: neither text nor images are written
    content: Literal["all", "text", "none"] = "all"
    fsync: bool = False  # files survive a loss of power, not only of the process
    timeout_sec: _Positive = 5.0  # for one call, attempts included
    encryption_key_env: str | None = None  # the environment variable with the keys; None: plain
    kv_spill: bool = False  # KV states that leave memory are written there too, and read back
    kv_spill_bytes: _Count = 16_000_000_000  # of these, of the sessions of one engine

    @property
    def spill_bytes(self) -> int:
        """Return the largest number of bytes of KV states in the store."""
        return self.kv_spill_bytes if self.kv_spill else 0


class HandlerConfig(EngineConfig, frozen=True, kw_only=True):
    """`handler` of a language or vision-language model."""

    revision: str | None = None
    trust_remote_code: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    pack_linears: bool = True  # on a CPU that gains from it
    fused_layers: bool = True  # on a CPU, where they prove to compute what the model does
    attention_kernels: bool = True  # on a GPU where they prove to compute what torch's operators do
    cuda_graphs: bool = True  # of decode steps, with these kernels and where they are faster
    # Between two pieces of a stream; what is generated in the meantime comes in one.
    stream_interval_sec: Annotated[float, Meta(ge=0, le=10)] = 0.04
    stateful_sessions: bool = True  # without, every prompt stands alone
    reattach_sec: _Positive = 10.0  # a turn whose client is gone goes on for this long
    context_length: _Count | None = None  # tokens; None: what the model's configuration says
    prefill_chunk: _Count = 256  # tokens prefilled between two decode steps
    # Of these: what no session uses any more.
    shared_cache_bytes: Annotated[int, Meta(ge=0)] = 256_000_000
    host_cache_bytes: Annotated[int, Meta(ge=0)] = 0  # embeddings and KV moved off the device
    media: MediaConfig = MediaConfig()
    store: StoreConfig = StoreConfig()


class StateConfig(EngineConfig, frozen=True, kw_only=True):
    """`handler` of a model with recurrent state, which declares its tensors.

    `model` is a TorchScript file (.pt), an exported program (.pt2), or `file.py:Class` with `arguments` and `weights`.
    """

    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    states: tuple[State, ...] = ()
    arguments: dict[str, Any] = {}  # of the class
    weights: str | None = None  # a safetensors file for the class
    max_rows: _Count = 256  # sequences in one forward pass
    fixed_rows: bool = False  # every pass has `maxRows` rows: for programs that were exported so
    host_cache_bytes: _Count | None = None  # states moved off the device; None: no bound
    # Steps; every one is in the store before it is answered. 0: sequences end with their engine.
    commit_every: Annotated[int, Meta(ge=0)] = 0
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

    min_workers: Annotated[int, Meta(ge=0)] = msgspec.field(name="minWorkers", default=1)
    max_workers: Annotated[int, Meta(ge=0)] = msgspec.field(name="maxWorkers", default=1)
    batch_size: _Count = msgspec.field(name="batchSize", default=1)
    max_batch_delay_ms: Annotated[int, Meta(ge=0)] = msgspec.field(
        name="maxBatchDelay", default=100
    )
    response_timeout_s: _Count = msgspec.field(name="responseTimeout", default=120)
    startup_timeout_s: _Count = msgspec.field(name="startupTimeout", default=120)
    job_queue_size: _Count = msgspec.field(name="jobQueueSize", default=100)
    continuous_batching: bool = msgspec.field(name="continuousBatching", default=False)
    sequence_batching: bool = msgspec.field(name="sequenceBatching", default=False)
    async_communication: bool = msgspec.field(name="asyncCommunication", default=False)
    sequence_max_idle_ms: Annotated[int, Meta(ge=0)] = msgspec.field(
        name="sequenceMaxIdleMSec", default=0
    )
    sequence_timeout_ms: Annotated[int, Meta(ge=0)] = msgspec.field(
        name="sequenceTimeoutMSec", default=0
    )
    max_num_sequence: Annotated[int, Meta(ge=0)] = msgspec.field(name="maxNumSequence", default=0)
    max_sequence_job_queue_size: _Count = msgspec.field(name="maxSequenceJobQueueSize", default=1)

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
    if isinstance(handler, Mapping) and "states" in handler:
        return Config(frontend=frontend, state=_convert(handler, StateConfig, prefix="handler"))
    return Config(frontend=frontend, handler=_convert(handler, HandlerConfig, prefix="handler"))


def _convert(document: Any, kind: type[Any], prefix: str) -> Any:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        path = f"$.{prefix}" if prefix else "$"
        raise ConfigError(f"model-config.yaml: {str(error).replace('`$', f'`{path}')}") from None
