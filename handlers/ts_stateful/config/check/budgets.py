"""Rules about the bytes of language models: what a device holds of sessions, and what a session may grow to."""

from __future__ import annotations

from collections.abc import Iterator

from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.schema import Config, HandlerConfig
from ts_stateful.config.sizes import TransformerSize, show_bytes, show_count

__all__ = ["check_budgets", "check_model", "counted_dtype"]


def counted_dtype(handler: HandlerConfig) -> str:
    """The dtype with which states are counted: of `auto` what a GPU gets, and on a CPU the larger of the two it may be."""
    if handler.dtype != "auto":
        return handler.dtype
    return "float32" if handler.device == "cpu" else "bfloat16"


def check_budgets(handler: HandlerConfig) -> Iterator[Finding]:
    """What can be told without the model."""
    device = handler.device_cache_bytes
    if device is not None and device < 1 << 20:
        yield warning(
            "handler.deviceCacheBytes",
            f"{device} bytes hold hardly one session: every turn would be computed from its start",
            "give bytes, 2_000_000_000 for instance, or leave it out",
        )
    if handler.device == "cpu" and handler.host_cache_bytes:
        yield warning(
            "handler.hostCacheBytes",
            "has no meaning on a CPU, whose memory is the host's: what leaves deviceCacheBytes is computed again",
            "leave it out, and give deviceCacheBytes what the machine has",
        )
    if handler.store.kv_spill:
        yield from _check_spill(handler)
    if handler.context_length is not None and handler.context_length < handler.prefill_chunk:
        yield warning(
            "handler.prefillChunk",
            f"{handler.prefill_chunk} is more than a context holds ({handler.context_length} tokens)",
            "set it below handler.contextLength",
        )


def _check_spill(handler: HandlerConfig) -> Iterator[Finding]:
    if handler.store.url == "none" or handler.store.content == "none":
        yield warning(
            "handler.store.kvSpill",
            "KV states are kept out of the store as well, by `url: none` or `content: none`",
            "leave one of the two out",
        )
    elif handler.device == "cpu" and handler.device_cache_bytes is None:
        yield warning(
            "handler.store.kvSpill",
            "no states ever leave a memory without a bound",
            "give handler.deviceCacheBytes",
        )


def check_model(config: Config, model: TransformerSize) -> Iterator[Finding]:
    """What can be told with the sizes of the model."""
    handler, device = config.handler, config.handler.device_cache_bytes
    if handler.context_length and model.window and handler.context_length > model.window:
        yield error(
            "handler.contextLength",
            f"{show_count(handler.context_length)} tokens: the model's window has {show_count(model.window)}",
            f"set it to at most {model.window}",
        )
        return
    window, token_bytes = (
        handler.context_length or model.window,
        model.token_bytes(counted_dtype(handler)),
    )
    if device is None or window is None or device >= window * token_bytes:
        return
    yield warning(
        "handler.deviceCacheBytes",
        f"{show_bytes(device)} hold {show_count(device // token_bytes)} tokens of one session"
        f" ({model.arithmetic(counted_dtype(handler))}), a context has up to {show_count(window)}:"
        " turns of longer ones are answered with `out_of_memory`",
        f"set it to at least {window * token_bytes}, or `contextLength: {max(1, device // token_bytes)}`",
    )
