"""Vision towers without the work whose result nobody takes."""

from __future__ import annotations

import pytest
import torch
from transformers.models.clip.modeling_clip import CLIPEncoderLayer

from tests.support.tiny import llava
from ts_stateful.language.encoders.lean_tower import make_lean


@pytest.mark.parametrize(("taken", "num_run"), [(-1, 2), (-2, 1), ([-2], 1), (1, 1)])
def test_layers_whose_outputs_nobody_takes_are_skipped(
    taken: int | list[int], num_run: int
) -> None:
    """The embeddings stay those of stock code, bit for bit."""
    network = llava().network
    network.config.vision_feature_layer = taken
    side = network.config.vision_config.image_size
    pixels = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    layers = [m for m in network.modules() if type(m) is CLIPEncoderLayer]
    for layer in layers:
        del layer.mlp.activation_fn.forward  # what stock code does
    ran: list[None] = []
    with torch.inference_mode():
        stock = network.base_model.get_image_features(pixels).pooler_output
        make_lean(network)
        for layer in layers:
            layer.mlp.register_forward_hook(lambda *_: ran.append(None))
        found = network.base_model.get_image_features(pixels).pooler_output
    assert torch.equal(torch.cat(list(found)), torch.cat(list(stock)))
    assert len(ran) == num_run
