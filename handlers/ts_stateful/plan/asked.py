"""The request for a plan, with the defaults of open values and the shares of the engines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ts_stateful.config.sizes import DTYPE_BYTES, ModelUnknown, StatesSize, TransformerSize
from ts_stateful.protocol.profile import Profile

__all__ = ["Asked", "PlanRefused"]

_LEAST_ACTIVE = 16
_USUAL_TOKENS = 4096
_UNLIMITED_TOKENS = 1 << 62
_MAX_IDLE_MIN = 35_000  # TorchServe accepts at most 2**31 - 1 milliseconds


class PlanRefused(ValueError):
    """A request that cannot work. The message gives the reason and, after `; `, options that work."""


@dataclass(frozen=True)
class Asked:
    """A number of sessions and the hardware for them. Memory is in bytes; None is unknown.

    At most one of `model` and `states` is given. `model_name`, `max_rows` and `fixed_rows` are for `handler`.

    Raises:
        PlanRefused: an option exceeds another one, the model, or TorchServe.
    """

    sessions: int
    profile: Profile = Profile.CONTINUOUS
    gpus: int = 0
    active: int | None = None
    model: TransformerSize | None = None
    model_name: str | None = None
    states: StatesSize | None = None
    max_rows: int | None = None
    fixed_rows: bool = False
    dtype: str = "auto"
    context: int | None = None
    session_tokens: int | None = None
    session_image_tokens: int | None = None  # of session_tokens
    gpu_memory: int | None = None
    memory: int | None = None
    weight_bytes: int | None = None
    num_adapter_weights: int = 0
    idle_min: float = 10
    opened_per_min: float = 0
    split: int = 1  # GPUs of an engine, each with a part of the model

    def __post_init__(self) -> None:
        if self.split > 1:
            self._check_split()
        if self.gpu_memory is not None and not self.gpus:
            raise PlanRefused("--gpu-memory without a GPU; give --gpus N, or --memory for a CPU")
        window = (self.model and self.model.window) or _UNLIMITED_TOKENS
        for option, value, most, bound in (
            ("--active", self.active, self.sessions, "the number of sessions"),
            ("--idle", self.idle_min, _MAX_IDLE_MIN, "TorchServe's limit in minutes"),
            ("--context", self.context, window, "the tokens of the model's window"),
            ("--tokens", self.session_tokens, self.context or window, "the tokens of a context"),
            ("--image-tokens", self.session_image_tokens, self.tokens, "the tokens of a session"),
        ):
            if value is not None and value > most:
                reason = f"{option} {value:.15g} exceeds {most:,}, {bound}"
                raise PlanRefused(f"{reason}; ask for at most {option} {most}")

    def _check_split(self) -> None:
        if self.states is not None:
            raise PlanRefused("--tensor-parallel is for language models; leave it out")
        if self.gpus % self.split or not self.gpus:
            raise PlanRefused(
                f"--tensor-parallel {self.split} does not divide {self.gpus} GPUs; ask for --gpus {self.split}, or a multiple"
            )
        try:
            _ = self.part
        except ModelUnknown as reason:
            assert self.model is not None
            fits = math.gcd(self.split, self.model.heads, self.model.kv_heads)
            problem, _, _ = str(reason).partition("; ")
            raise PlanRefused(f"{problem}; ask for --tensor-parallel {fits}") from None

    @property
    def part(self) -> TransformerSize | None:
        """Return the sizes of the model on one device."""
        return self.model and self.model.part(self.split)

    @property
    def engines(self) -> int:
        """Return one engine per GPU, or per group of them, or one on the CPU, but no engine without a session."""
        return max(1, min(self.gpus // self.split, self.sessions))

    @property
    def shares(self) -> list[int]:
        """Return the sessions of each engine; the last has most."""
        return [(self.sessions + index) // self.engines for index in range(self.engines)]

    @property
    def share(self) -> int:
        """Return the sessions of the fullest engine."""
        return self.shares[-1]

    @property
    def turns(self) -> int:
        """Return the turns in progress at once; by default a tenth of the sessions, at least 16."""
        return self.active or min(self.sessions, max(_LEAST_ACTIVE, -(-self.sessions // 10)))

    @property
    def counted_dtype(self) -> str:
        """Return the dtype for counting bytes. `auto` is bfloat16 on a GPU, and at most float32 on a CPU."""
        return ("bfloat16" if self.gpus else "float32") if self.dtype == "auto" else self.dtype

    @property
    def tokens(self) -> int:
        """Return the tokens of a session; by default its context, or 4,096 if that is unlimited."""
        window = self.model.window if self.model else None
        return self.session_tokens or self.context or min(window or _USUAL_TOKENS, _USUAL_TOKENS)

    @property
    def image_tokens(self) -> int:
        """Return the image tokens of a session; by default those of one image."""
        if self.session_image_tokens is not None:
            return self.session_image_tokens
        return min(self.model.image_tokens or 0, self.tokens) if self.model else 0

    @property
    def weights(self) -> int:
        """Return the bytes of the weights of the model and its adapters on a device; 0 if the model's are unknown."""
        if self.weight_bytes is None and self.model is None:
            return 0
        adapters = self.num_adapter_weights * DTYPE_BYTES[self.counted_dtype]
        if self.weight_bytes is not None:
            return -(-self.weight_bytes // self.split) + adapters
        return (self.part.weight_bytes(self.counted_dtype) if self.part else 0) + adapters
