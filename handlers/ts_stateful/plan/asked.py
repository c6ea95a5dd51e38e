"""What is asked of a plan, and what follows from it at once.

Owns the defaults of what was left open, and the shares of the engines.
"""

from __future__ import annotations

from dataclasses import dataclass

from ts_stateful.config.sizes import StatesSize, TransformerSize
from ts_stateful.protocol.profile import Profile

__all__ = ["Asked", "PlanRefused", "refuse"]

_MANY_SESSIONS = 1_000_000
_LEAST_ACTIVE = 16
_USUAL_TOKENS = 4096


class PlanRefused(ValueError):
    """What is asked cannot work; the message says why, and what would."""


def refuse(reason: str, cure: str) -> PlanRefused:
    """In the form in which all of them are told."""
    return PlanRefused(f"{reason}; {cure}")


@dataclass(frozen=True)
class Asked:
    """So many sessions, on such hardware. Memory is in bytes; None is what nobody has told.

    At most one of `model` and `states` is given. `model_name`, `max_rows` and `fixed_rows` are what `handler` shall say of it.
    A session holds `tokens`, of which `image_tokens` stand for its images.
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
    session_image_tokens: int | None = None
    gpu_memory: int | None = None
    memory: int | None = None
    weight_bytes: int | None = None
    idle_min: float = 10
    opened_per_min: float = 0
    waiting: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.sessions <= _MANY_SESSIONS:
            raise refuse(f"{self.sessions:,} sessions", f"ask for 1 to {_MANY_SESSIONS:,}")
        if self.active is not None and self.active > self.sessions:
            raise refuse(
                f"{self.active:,} turns in progress in {self.sessions:,} sessions: a session has one at a time",
                f"ask for at most --active {self.sessions}",
            )
        if self.gpu_memory is not None and not self.gpus:
            raise refuse("the memory of GPUs, but no GPU", "say --gpus N, or --memory for a CPU")
        if self.model is not None:
            _check_tokens(self, self.model)

    @property
    def engines(self) -> int:
        """One per GPU or one on the CPU, and none without a session."""
        return max(1, min(self.gpus, self.sessions))

    @property
    def shares(self) -> list[int]:
        """The sessions of each engine."""
        return [(self.sessions + index) // self.engines for index in range(self.engines)]

    @property
    def share(self) -> int:
        """Those of the engine that has most."""
        return self.shares[-1]

    @property
    def turns(self) -> int:
        """In progress at once: a tenth of the sessions, where nobody has said how many."""
        return self.active or min(self.sessions, max(_LEAST_ACTIVE, -(-self.sessions // 10)))

    @property
    def counted_dtype(self) -> str:
        """With which bytes are counted: of `auto` what a GPU gets, and on a CPU the larger of what it may be."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if self.gpus else "float32"

    @property
    def tokens(self) -> int:
        """Of a session: as many as its context may have, or a usual number where that is not bounded."""
        window = self.model.window if self.model else None
        return self.session_tokens or self.context or min(window or _USUAL_TOKENS, _USUAL_TOKENS)

    @property
    def image_tokens(self) -> int:
        """Of a session: one image, where nobody has said how many."""
        if self.session_image_tokens is not None or self.model is None:
            return self.session_image_tokens or 0
        return min(self.model.image_tokens or 0, self.tokens)

    @property
    def weights(self) -> int:
        """Bytes of the model's weights; 0 where they are not known."""
        if self.weight_bytes is not None or self.model is None:
            return self.weight_bytes or 0
        return self.model.weight_bytes(self.counted_dtype)


def _check_tokens(asked: Asked, model: TransformerSize) -> None:
    for option, tokens in (("--context", asked.context), ("--tokens", asked.session_tokens)):
        window = min(filter(None, (model.window, asked.context)), default=tokens)
        if tokens is not None and window is not None and tokens > window:
            raise refuse(
                f"{option} {tokens}: the context window has {window:,} tokens",
                f"ask for at most {option} {window}",
            )
    if asked.image_tokens > asked.tokens:
        window = min(filter(None, (model.window, asked.context)), default=asked.image_tokens)
        longer = f"--tokens {asked.image_tokens}, or " if asked.image_tokens <= window else ""
        raise refuse(
            f"{asked.image_tokens:,} tokens of images in a session of {asked.tokens:,} tokens",
            f"ask for {longer}at most --image-tokens {asked.tokens}",
        )
