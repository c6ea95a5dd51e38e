"""The devices of the engines of a model."""

from __future__ import annotations

from pathlib import Path

from ts_stateful.config.schema import ConfigError, EngineConfig

__all__ = ["devices"]

# Of Linux, and of its subsystem in Windows.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")


def _num_gpus() -> int:
    if not any(Path(name).exists() for name in _GPU_DRIVERS):
        return 0
    import torch  # noqa: PLC0415 - takes seconds, in which a front that starts again answers nobody

    return torch.cuda.device_count()


def devices(settings: EngineConfig, num_ranks: int = 1) -> list[list[str]]:
    """Return the devices of every engine, `num_ranks` each: by default the engines use all GPUs, or one the CPU.

    Raises:
        ConfigError: there are too few devices, or several engines share a GPU, and each would use all of its free memory.
    """
    num_gpus = _num_gpus() if settings.device in ("auto", "cuda") else 0
    names = [f"cuda:{index}" for index in range(num_gpus)]
    names = names or [settings.device if settings.device != "auto" else "cpu"]
    is_gpu = names[0].startswith("cuda")
    if not is_gpu:
        names *= num_ranks
    groups = [names[at : at + num_ranks] for at in range(0, len(names), num_ranks)]
    groups = [group for group in groups if len(group) == num_ranks]
    if not groups:
        raise ConfigError(
            f"model-config.yaml: handler.tensorParallel: an engine needs {num_ranks} GPUs, but has {', '.join(names)}:"
            " set it to at most their number, and leave out handler.device"
        )
    count = settings.engines if isinstance(settings.engines, int) else len(groups)
    if is_gpu and len(groups) < count and settings.device_cache_bytes is None:
        raise ConfigError(
            f"model-config.yaml: handler.engines: {count} engines share {', '.join(names)}: set"
            " handler.deviceCacheBytes to what each may take, or write `engines: auto`"
        )
    return [groups[index % len(groups)] for index in range(count)]
