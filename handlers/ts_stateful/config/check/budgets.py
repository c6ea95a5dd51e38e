"""Rules for the memory of language models: the cache of a device, and the length of a session."""

from __future__ import annotations

from collections.abc import Iterator

from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.schema import Config, HandlerConfig
from ts_stateful.config.sizes import ModelUnknown, TransformerSize, show_bytes

__all__ = ["check_budgets", "check_model", "counted_dtypes"]


def counted_dtypes(handler: HandlerConfig) -> dict[str, str]:
    """Return the dtype with which states are counted, under "", or that of each kind of device if the device is open.

    As in `ts-stateful plan`, `auto` is bfloat16 on a GPU, and on a CPU the larger of its two. The one of fewer bytes is last.
    """
    if handler.dtype != "auto":
        return {"": handler.dtype}
    if handler.device == "auto" and handler.tensor_parallel == 1:
        return {"on a CPU": "float32", "on a GPU": "bfloat16"}
    return {"": "float32" if handler.device == "cpu" else "bfloat16"}


def check_budgets(handler: HandlerConfig) -> Iterator[Finding]:
    """Find what is wrong without the sizes of the model."""
    device = handler.device_cache_bytes
    if device is not None and device < 1 << 20:
        yield warning(
            "handler.deviceCacheBytes",
            f"{device} bytes hold less than one session: every turn would be computed from its start",
            "set it in bytes, for instance 2_000_000_000, or leave it out",
        )
    if handler.device == "cpu" and handler.host_cache_bytes:
        yield warning(
            "handler.hostCacheBytes",
            "has no effect on a CPU, whose memory is the host's: states that leave deviceCacheBytes are computed again",
            "leave it out, and set deviceCacheBytes to the memory of the machine",
        )
    if handler.store.kv_spill:
        yield from _check_spill(handler)
    length, chunk = handler.context_length, handler.prefill_chunk
    if length is not None and chunk is not None and length < chunk:
        yield warning(
            "handler.prefillChunk",
            f"{chunk} is longer than a context ({length} tokens)",
            "set it below handler.contextLength",
        )


def _check_spill(handler: HandlerConfig) -> Iterator[Finding]:
    if handler.store.url == "none" or handler.store.content == "none":
        yield warning(
            "handler.store.kvSpill",
            "has no effect: `url: none` or `content: none` keeps KV states out of the store",
            "leave one of the two out",
        )
    elif handler.device == "cpu" and handler.device_cache_bytes is None:
        yield warning(
            "handler.store.kvSpill",
            "has an effect only in a container with a limit: states never leave a memory without a bound",
            "set handler.deviceCacheBytes",
        )


def check_model(config: Config, model: TransformerSize) -> Iterator[Finding]:
    """Find what is wrong with the sizes of the model."""
    handler, device = config.handler, config.handler.device_cache_bytes
    try:
        model = model.part(handler.tensor_parallel)
    except ModelUnknown as reason:
        yield error("handler.tensorParallel", str(reason), "or leave it out")
        return
    if handler.context_length and model.window and handler.context_length > model.window:
        yield error(
            "handler.contextLength",
            f"{handler.context_length:,} tokens are more than the model's window of {model.window:,}",
            f"set it to at most {model.window}",
        )
        return
    window = handler.context_length or model.window
    where, dtype = list(counted_dtypes(handler).items())[-1]
    needed = (window or 0) * model.token_bytes(dtype) + model.fixed.num_bytes(dtype)
    if device is None or window is None or device >= needed:
        return
    tokens = model.tokens_in(device, dtype)
    yield warning(
        "handler.deviceCacheBytes",
        f"{where} {show_bytes(device)} hold {tokens:,} tokens of one session".lstrip()
        + f" ({model.arithmetic(dtype)}), but a context has up to {window:,}:"
        " turns of longer sessions fail with `out_of_memory`",
        f"set it to at least {needed}" + (f", or `contextLength: {tokens}`" if tokens else ""),
    )
