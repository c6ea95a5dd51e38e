"""Memory limits of an engine's sessions, and recognition of out-of-memory errors."""

from __future__ import annotations

import torch

from ts_stateful.config.control_groups import ControlGroups
from ts_stateful.config.schema import Config
from ts_stateful.language.network.load import Model
from ts_stateful.sessions.places import Limits

__all__ = ["is_out_of_memory", "limits_of"]

_FREE_SHARE = 0.8  # of the memory that the weights leave free; activations need the rest


def limits_of(
    model: Model, config: Config, max_sessions: int | None, groups: ControlGroups | None = None
) -> Limits:
    """Return the limits of the session table of an engine whose model is loaded; `max_sessions` is its share, None: all.

    Of a split model, bytes are those of one part.
    """
    frontend, settings = config.frontend, config.handler
    # On a CPU the host's memory is the device's, so there is nothing to offload.
    on_cpu = model.device.type == "cpu"
    device_bytes = settings.device_cache_bytes
    if device_bytes is None and model.device.type == "cuda":
        torch.cuda.empty_cache()  # of weights that were joined, or loaded in another type
        device_bytes = int(_FREE_SHARE * torch.cuda.mem_get_info(model.device)[0])
    elif device_bytes is None and (free := (groups or ControlGroups()).free_bytes()) is not None:
        engines = 1 if settings.engines == "auto" else settings.engines
        device_bytes = int(_FREE_SHARE * free) // (engines * settings.tensor_parallel)
    return Limits(
        max_sessions=max_sessions or frontend.max_sessions,
        idle_s=frontend.idle_s,
        lifetime_s=frontend.lifetime_s,
        device_bytes=device_bytes,
        host_bytes=0 if on_cpu else settings.host_cache_bytes // settings.tensor_parallel,
    )


def is_out_of_memory(error: Exception) -> bool:
    """Return True if the failed work may succeed with more memory."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
