"""Answers to `hello`, `info` and `fork` of a language model."""

from __future__ import annotations

from msgspec import structs

from ts_stateful.clock import Clock
from ts_stateful.engine.core import EngineCore
from ts_stateful.engine.reports import server_hello, session_info
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.answers import Forked, HelloAnswer, SessionInfo, TokenDetails, Usage
from ts_stateful.protocol.profile import Profile
from ts_stateful.sessions.session import Session

__all__ = ["forked", "hello", "info"]


def hello(core: EngineCore[Context], model: Model, profile: Profile) -> HelloAnswer:
    """Describe the server, with the abilities and limits of its model."""
    media, kinds = core.config.handler.media, model.encoder.kinds if model.encoder else ()
    answer = server_hello(core.config, profile, model.name)
    limits = structs.replace(
        answer.limits,
        context_tokens=model.context_tokens,
        images=media.max_images if "images" in kinds else 0,
        image_bytes=media.max_bytes,
        image_pixels=media.max_pixels,
        audio=media.max_images if "audio" in kinds else 0,
        audio_s=min(media.max_audio_sec, model.encoder.max_seconds) if model.encoder else 0.0,
    )
    return structs.replace(
        answer,
        limits=limits,
        chat_template=model.text.has_template,
        adapters=model.adapters.names,
        quantization=model.quantization,
        tensor_parallel=core.config.handler.tensor_parallel,
    )


def info(
    session: Session[Context], model: Model, clock: Clock, *, saved: bool | None
) -> SessionInfo:
    """Describe a session; `saved` is True if the store has all of it, None if there is no store."""
    context = session.state
    encoder = model.encoder
    kinds = [encoder.tower_of(image).kind for image in context.images] if encoder else []
    return structs.replace(
        session_info(session, clock),
        turns=len(context.turns),
        tokens=len(context.log),
        cached_tokens=min(context.kv.length, len(context.log)),
        images=kinds.count("images"),
        audio=kinds.count("audio"),
        device_bytes=context.device_bytes + context.image_bytes,
        saved=saved,
        adapter=context.adapter,
    )


def forked(session: Session[Context], source_id: str, clock: Clock) -> Forked:
    """Describe a session that was made from another one just now."""
    context = session.state
    return Forked(
        session.session_id,
        clock.rfc3339(session.expires_at),
        Usage(
            prompt_tokens=len(context.log),
            prompt_tokens_details=TokenDetails(cached_tokens=context.kv.length),
        ),
        forked_from=source_id,
        turn=len(context.turns),
    )
