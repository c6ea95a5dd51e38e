"""Steps of replies that follow a JSON schema each, of sampled ones and of plain ones, by the engine alone."""

from __future__ import annotations

import itertools
import random
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.driver import Driver
from benchmarks.model import CONTEXT, HEADS, KV_HEADS, LAYERS, TEMPLATE, WIDTH
from ts_stateful.config.schema import load_config
from ts_stateful.language.network.load import accelerate, build_model
from ts_stateful.protocol.requests import Cancel, Close, Open, Prompt
from ts_stateful.protocol.response_format import JsonSchema

__all__ = ["FormSteps"]

_VOCABULARY = 32_000  # tokens of bytes, as many as Llama 2 has
_SPREAD = (
    8.0  # times stock weights of the output layer: so its logits are as peaked as a trained model's
)
_SPECIAL = ("<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")


class FormSteps:
    """An engine for a text model of random weights, of the size of the measured one, with a vocabulary of JSON's characters."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        config = load_config(
            {"maxNumSequence": 64, "handler": {"model": "none", "threads": threads}}
        )
        tokenizer = _build_tokenizer()
        model = build_model("forms", _build_network(len(tokenizer)), tokenizer)
        accelerate(model, config.handler)
        self._driver = Driver(model, config)
        self._names = (f"session-{number}" for number in itertools.count())

    def step(self, width: int, num_steps: int, has_forms: bool, are_drawn: bool) -> float:
        """Return the time in milliseconds in which `width` rows get a token each.

        Each may have a schema of its own, or be sampled. A schema gives some tokens away: several of a row are then computed in
        one step, which takes longer.
        """
        driver, sessions = self._driver, list(itertools.islice(self._names, width))
        for session in sessions:
            driver.ask(Open(session_id=session), creates_session=True)
        requests = [
            driver.submit(
                Prompt(
                    session_id=session,
                    prompt="List them.",
                    max_new_tokens=4 * num_steps,
                    ignore_eos=not has_forms,
                    response_format=_schema(number) if has_forms else None,
                    temperature=0.7 if are_drawn else 0.0,
                    top_p=0.9 if are_drawn else 1.0,
                    seed=number,
                    stream=True,
                )
            )
            for number, session in enumerate(sessions)
        ]
        driver.run_until(lambda: all(request in driver.begun_at for request in requests))
        before, began_at = driver.engine.stats().tokens_generated, time.perf_counter()
        for _ in range(num_steps):
            driver.engine.step()
        took_s = time.perf_counter() - began_at
        num_tokens = driver.engine.stats().tokens_generated - before
        for session in sessions:
            driver.ask(Cancel(session_id=session))
        for request in requests:
            driver.wait(request)
        for session in sessions:
            driver.ask(Close(session_id=session))
        return 1000 * took_s * width / num_tokens


def _schema(number: int) -> JsonSchema:
    """Return a schema of long lists, different for each number."""
    item = {
        "type": "object",
        "properties": {
            f"name_{number}": {"type": "string", "maxLength": 20},
            "size": {"type": "number"},
            "color": {"enum": ["red", "green", "blue", f"color {number}"]},
        },
        "required": [f"name_{number}", "size", "color"],
        "additionalProperties": False,
    }
    return JsonSchema({"type": "array", "items": item, "minItems": 1000})


def _build_network(vocabulary: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=1408,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
    )
    network = LlamaForCausalLM(config).eval()
    network.lm_head.weight.data *= _SPREAD
    return network


def _build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, whose other tokens are strings of letters, digits and JSON's marks."""
    rng = random.Random(0)
    letters = 'abcdefghijklmnopqrstuvwxyz0123456789 ."{}[]:,'
    pieces = dict.fromkeys([*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    while len(pieces) < _VOCABULARY:
        text = "".join(rng.choices(letters, k=rng.randint(2, 9)))
        pieces[text.replace(" ", "\u0120")] = None
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_SPECIAL[0],
        eos_token=_SPECIAL[1],
        additional_special_tokens=list(_SPECIAL[2:]),
        chat_template=TEMPLATE,
    )
