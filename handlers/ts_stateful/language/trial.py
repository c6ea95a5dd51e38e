"""A trial of a model that sees or hears when it is loaded: a chat with media, computed as for a session, beside stock code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as Items
from typing import Any

import torch
from torch import Tensor

from ts_stateful.config.schema import ConfigError
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.history import Delta
from ts_stateful.language.conversation.turn import Sequence
from ts_stateful.language.encoders.encoder import Encoder, LookAhead, MediaInput
from ts_stateful.language.kv.spans import beginning_of
from ts_stateful.language.network.load import Model
from ts_stateful.language.network.model_support import distance
from ts_stateful.language.runner import Runner
from ts_stateful.language.text.dialogue import Dialogue
from ts_stateful.protocol.chat import Said
from ts_stateful.protocol.requests import Prompt
from ts_stateful.sessions.session import Session

__all__ = ["verify_media"]

_BETWEEN, _AFTER = ("Red, or", "blue?\n"), "And this?"


@torch.inference_mode()
def verify_media(model: Model) -> None:
    """Verify that images or clips are served as the stock processor and a stock pass read them. A text model passes.

    Raises:
        ConfigError: the token ids or the logits differ, or a call failed.
    """
    encoder = model.encoder
    if encoder is None:
        return
    try:
        for decoded in encoder.samples():
            if _verify(model, encoder, decoded):
                break
    except ConfigError:
        raise
    except Exception as error:  # stock code that was not made for it may raise anything
        kind = type(model.network).__name__
        raise ConfigError(
            f"{model.name}: {_noun(encoder)} of {kind} cannot be computed by themselves, only its text can be served"
            f" (`handler.vision: false`): {type(error).__name__}: {error}"
        ) from error
    finally:
        for tower in encoder.towers:
            tower.num_runs = 0


def _verify(model: Model, encoder: Encoder[Any], decoded: Items[Any]) -> bool:
    """Verify a chat with these media; return False if the model's window is too small for it."""
    images = [encoder.prepare(each) for each in decoded]
    # A text right after the first one, and the others adjacent.
    message = model.text.chat_message(
        Said("user", (None, *_BETWEEN, *[None] * (len(images) - 1), _AFTER))
    )
    extension = model.text.extend(Dialogue(Delta()), [], [message], [image.ids for image in images])
    if len(extension.ids) > model.context_tokens:
        return False
    stock = encoder.process(extension.rendered, decoded)
    expected_ids = stock["input_ids"][0].tolist()
    if expected_ids != extension.ids:
        raise ConfigError(f"{model.name}: {_difference(expected_ids, extension.ids, encoder)}")
    expected = _stock_logits(model, stock)
    found = []
    for encoder.look_ahead in LookAhead:
        logits = _session_logits(model, encoder, extension.ids, images)
        apart, bound = distance(logits, expected, quantised=model.quantization is not None)
        if apart <= bound:  # not NaN
            return True
        found.append(apart)
    raise ConfigError(
        f"{model.name}: a chat with {_noun(encoder)} gives other logits than the stock model's,"
        f" by {min(found):.2g} of their spread"
    )


def _difference(expected: Items[int], found: Items[int], encoder: Encoder[Any]) -> str:
    for tower in encoder.towers:
        if tower.token_id not in found:
            return f"its chat template writes no {tower.token} for one of the {tower.kind}, or its processor needs none"
        counts = [ids.count(tower.token_id) for ids in (expected, found)]
        if counts[0] != counts[1]:
            return f"several of the {tower.kind} have {counts[0]} tokens together, and {counts[1]} one by one"
    noun = _noun(encoder)
    return f"its processor writes other tokens around one of the {noun} than for it by itself"


def _noun(encoder: Encoder[Any]) -> str:
    return " and ".join(encoder.kinds)


def _stock_logits(model: Model, inputs: dict[str, Any]) -> Tensor:
    """Return the logits after a prompt, `(1, vocabulary)`, by the model as the library calls it."""
    network = model.network
    moved = {
        name: tensor.to(network.device, network.dtype if tensor.is_floating_point() else None)
        for name, tensor in inputs.items()
        if isinstance(tensor, Tensor)
    }
    config = model.forward.text_config
    ours, config._attn_implementation = config._attn_implementation, model.forward.stock_attention
    try:
        logits: Tensor = network(**moved, use_cache=False).logits[:, -1]
    finally:
        config._attn_implementation = ours
    return logits


def _session_logits(
    model: Model, encoder: Encoder[Any], ids: list[int], images: list[MediaInput]
) -> Tensor:
    """Return the same, computed in pieces that end within the images if they may."""
    mask = encoder.mask(ids, images)
    blocks = model.forward.prompt_blocks(len(ids)) + encoder.blocks(mask)
    session = Session("trial", Context(Delta(), model.new_kv()), 0.0, math.inf, math.inf, 0.0)
    turn = Sequence(session, Prompt(prompt="", logprobs=True), 0.0)  # no logit may be an estimate
    turn.ids, turn.num_prompt, turn.images = ids, len(ids), images
    turn.image_mask, turn.blocks = mask, blocks
    counts = [encoder.num_tokens(image) for image in images]
    middles = [beginning_of(blocks, middle) for middle in _middles(mask, counts)]
    runner = Runner(model)
    for start, stop in itertools.pairwise(sorted({0, *middles, len(ids)})):
        logits = runner.run([(turn, stop - start)])
    return logits.rows


def _middles(mask: bytearray, counts: Items[int]) -> list[int]:
    """Return an index within each image, of so many tokens."""
    at = [index for index, stands in enumerate(mask) if stands]
    return [
        at[end - (count + 1) // 2]
        for end, count in zip(itertools.accumulate(counts), counts, strict=True)
    ]
