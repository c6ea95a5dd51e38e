"""The benchmark's model, prompts and conversations: lengths are exact."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import PIL.Image
import pytest
import torch

from benchmarks.clients.conversation import Conversation, Turn
from benchmarks.gguf_names import permuted, target_of
from benchmarks.inputs import Inputs, ids_of, text_of
from benchmarks.model import IMAGE_TOKENS, NUM_SPECIAL, TEMPLATE_TOKENS, build_tokenizer, words


def test_the_vocabulary_is_words_and_special_tokens() -> None:
    """8,000 in all, no word twice."""
    assert len(build_tokenizer()) == len(words()) + NUM_SPECIAL == 8000
    assert len(set(words())) == len(words())


def test_a_token_is_a_word() -> None:
    """Ids and text convert both ways, for the tokenizer and for clients."""
    tokenizer = build_tokenizer()
    ids = Inputs().prompt(300)
    assert tokenizer(text_of(ids), add_special_tokens=False).input_ids == ids
    assert tokenizer.decode(ids) == text_of(ids)
    assert ids_of(text_of(ids)) == ids


def test_a_prompt_lengthens_the_context_exactly() -> None:
    """The template is included, in the first turn and in later ones, and later turns only append."""
    tokenizer = build_tokenizer()
    first, reply, second = Inputs().prompt(30), Inputs(2).prompt(8), Inputs(3).prompt(20)

    def ids_after(*contents: Sequence[int]) -> list[int]:
        roles = ("user", "assistant") * len(contents)
        messages = [
            {"role": r, "content": text_of(c)} for r, c in zip(roles, contents, strict=False)
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(text).input_ids
        return ids

    begun, gone_on = ids_after(first), ids_after(first, reply, second)
    assert len(begun) == 30
    assert gone_on[: len(begun)] == begun
    assert len(gone_on) == 30 + len(reply) + 20


def test_pictures_are_images_and_all_different() -> None:
    """So the server knows none that it has not received."""
    inputs = Inputs()
    made = [inputs.picture() for _ in range(3)]
    assert len(set(made)) == 3
    with PIL.Image.open(io.BytesIO(made[0])) as image:
        assert image.size == (448, 336)


class _EchoClient:
    """A client that answers with as many words as requested, or fewer."""

    def __init__(self, missing: int = 0) -> None:
        self.missing = missing
        self.prompts: list[int] = []

    def open(self, image: bytes | None) -> str:
        return "id"

    def ask(self, conversation_id: str, prompt: Sequence[int], max_new_tokens: int) -> Turn:
        self.prompts.append(len(prompt))
        return Turn.of(1.0, [(1.5, " word" * (max_new_tokens - self.missing))])

    def close(self, conversation_id: str) -> None:
        pass

    def disconnect(self) -> None:
        pass


@pytest.mark.parametrize("image", [None, b"an image"])
def test_a_conversation_is_begun_at_a_given_length(image: bytes | None) -> None:
    """Image, template and the first reply included."""
    client = _EchoClient()
    made = Conversation.of_length(client, Inputs(), 500, image)
    image_tokens = IMAGE_TOKENS if image else 0
    assert made.num_tokens == 500
    assert client.prompts == [500 - image_tokens - TEMPLATE_TOKENS - 1]
    turn = made.ask(Inputs().prompt(20), 4)
    assert made.num_tokens == 524
    assert (turn.first_ms, turn.num_tokens) == (500.0, 4)


def test_a_reply_of_another_length_is_no_measurement() -> None:
    """A reply that ends early is an error."""
    with pytest.raises(RuntimeError, match="3 tokens where 4"):
        Conversation(_EchoClient(missing=1)).ask(Inputs().prompt(20), 4)


def test_rotated_halves_become_neighboring_pairs() -> None:
    """In every head by itself."""
    rows = torch.arange(8).reshape(8, 1)  # two heads of four rows
    assert permuted(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_every_weight_has_a_name_in_gguf() -> None:
    """Of the whole model and of a layer."""
    assert target_of("model.embed_tokens.weight") == "token_embd.weight"
    assert target_of("model.layers.7.mlp.up_proj.weight") == "blk.7.ffn_up.weight"


@pytest.mark.parametrize("name", ["recompute", "published"])
def test_a_baseline_is_one_class(name: str, repository: Path) -> None:
    """TorchServe takes the only class of its module, and refuses several."""
    text = (repository / "benchmarks" / f"{name}_handler.py").read_text()
    assert text.count("\nclass ") == 1
