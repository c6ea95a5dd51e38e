"""Decode steps of the families of text models, by the engine alone and by the bare forward pass."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from benchmarks.driver import Driver
from benchmarks.floor import Floor
from benchmarks.inputs import Inputs, text_of
from benchmarks.model import (
    HEADS,
    KV_HEADS,
    LAYERS,
    NUM_SPECIAL,
    VOCABULARY,
    WIDTH,
    build_tokenizer,
)
from ts_stateful.config.schema import load_config
from ts_stateful.language.network.load import accelerate, build_model
from ts_stateful.protocol.requests import Cancel, Open, Prompt, Rewind

__all__ = ["FamilySteps"]

_TEXT: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 1408,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "tie_word_embeddings": False,
}
_ROPE: Final = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}
_BUILDERS: Final[dict[str, Callable[[], PreTrainedModel]]] = {
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**_TEXT, head_dim=64, query_pre_attn_scalar=64, sliding_window=256)
    ),
    "glm4": lambda: Glm4ForCausalLM(Glm4Config(**_TEXT, head_dim=64)),
    "granite": lambda: GraniteForCausalLM(
        GraniteConfig(**_TEXT, attention_multiplier=0.125, residual_multiplier=0.25)
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_TEXT)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_TEXT, sliding_window=None)),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(**{**_TEXT, "intermediate_size": 704}, num_local_experts=8)
    ),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**_TEXT)),
    "olmo3": lambda: Olmo3ForCausalLM(Olmo3Config(**_TEXT, sliding_window=256)),
    "olmoe": lambda: OlmoeForCausalLM(
        OlmoeConfig(**{**_TEXT, "intermediate_size": 352}, num_experts=16, num_experts_per_tok=4)
    ),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**_TEXT)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_TEXT)),
    "qwen2_5_vl": lambda: Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config={**_TEXT, "rope_parameters": _ROPE}, vision_config=_TOWER)
    ),
    "qwen2_vl": lambda: Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(text_config={**_TEXT, "rope_parameters": _ROPE}, vision_config=_TOWER)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_TEXT, head_dim=64)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **_TEXT,
            head_dim=64,
            num_experts=16,
            num_experts_per_tok=4,
            moe_intermediate_size=352,
        )
    ),
    "qwen3_vl": lambda: Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            text_config={**_TEXT, "head_dim": 64, "rope_parameters": _ROPE},
            vision_config={**_TOWER, "deepstack_visual_indexes": [0]},
        )
    ),
}
_TOWER: Final[dict[str, Any]] = {"depth": 1, "num_heads": 2}  # never called


class FamilySteps:
    """Engines for models of random weights, one at a time, each with sessions of `history` tokens, and their bare networks."""

    def __init__(self, threads: int, history: int) -> None:
        torch.set_num_threads(threads)
        self._threads = threads
        self._history = history
        self._family = ""

    def engine(self, family: str, width: int, num_steps: int) -> float:
        """Return tokens a second of `width` streams by the engine alone, from the median of its steps."""
        self._use(family, width)
        driver = self._driver
        requests = [driver.submit(self._prompt(name, 2 * num_steps)) for name in self._sessions]
        driver.run_until(lambda: all(request in driver.begun_at for request in requests))
        times = []
        for _ in range(num_steps):
            began_at = time.perf_counter()
            driver.engine.step()
            times.append(time.perf_counter() - began_at)
        for name in self._sessions:
            driver.ask(Cancel(session_id=name))
        for request, name in zip(requests, self._sessions, strict=True):
            driver.wait(request)
            driver.ask(Rewind(session_id=name, to_turn=1))
        return width / statistics.median(times)

    def floor(self, family: str, width: int, num_steps: int, cache: str) -> float:
        """Return the same of the stock network's batched steps on one of the caches."""
        self._use(family, width)
        return 1000 * width / self._floor.decode(width, self._history, num_steps, cache)

    def _use(self, family: str, width: int) -> None:
        """Build a family's model, unless it is the current one, and open its sessions."""
        if family == self._family:
            return
        self._family = family
        torch.manual_seed(0)
        network = _BUILDERS[family]().eval()
        with torch.no_grad():
            network.get_output_embeddings().weight[:NUM_SPECIAL] = 0  # as in the measured model
        self._floor = Floor(copy.deepcopy(network), self._threads)
        handler = {"model": "none", "threads": self._threads, "speculation": False}
        config = load_config({"maxNumSequence": 64, "handler": handler})
        model = build_model(family, network, build_tokenizer())
        accelerate(model, config.handler)
        self._driver = Driver(model, config)
        self._inputs = Inputs()
        self._sessions = [f"session-{number}" for number in range(width)]
        for name in self._sessions:
            self._driver.ask(Open(session_id=name), creates_session=True)
            self._driver.ask(self._prompt(name, 1, self._history))

    def _prompt(self, name: str, num_tokens: int, num_prompt: int = 8) -> Prompt:
        return Prompt(
            session_id=name,
            prompt=text_of(self._inputs.prompt(num_prompt)),
            max_new_tokens=num_tokens,
            ignore_eos=True,
            stream=True,
        )
