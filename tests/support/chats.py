"""A client that keeps its conversation itself, in front of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.support.harness import Harness, stock_reply
from tests.support.pictures import noise
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.chat import Chat, Said
from ts_stateful.protocol.requests import Image
from ts_stateful.store.base import Store

__all__ = ["NEW_TOKENS", "Chats", "Told", "cached", "chat"]

NEW_TOKENS = 8
Told = tuple[str, Any]  # role; a text, or texts and names of pictures


class Chats:
    """A client that tells the whole conversation every time, and checks every reply against stock `generate`."""

    def __init__(
        self, model: Model, store: Store | None = None, config: dict[str, Any] | None = None
    ) -> None:
        self.model = model
        self.harness = Harness(model, config, store=store)
        self.num_alone = 0
        self.pictures = {name: noise(seed) for seed, name in enumerate(("@1", "@2", "@3"), start=1)}
        self.harness.media.update(self.pictures)

    def say(
        self, *told: Told, session: str = "s", checked: bool = True, **fields: Any
    ) -> dict[str, Any]:
        """The answer to a conversation."""
        answer = self.harness.ask(self.chat(*told, session=session), **fields)
        if checked:
            self.check(told, session)
        return answer

    def say_alone(self, *told: Told, checked: bool = True) -> dict[str, Any]:
        """The answer to a conversation without a session header."""
        self.num_alone += 1
        name = f"alone-{self.num_alone}"
        return self.say(*told, session=name, checked=checked, creates_session=True, ephemeral=True)

    def chat(self, *told: Told, session: str) -> Chat:
        """The request."""
        parts = _in_parts(told)
        names = [part for _, said in parts for part in said if part in self.pictures]
        return Chat(
            session_id=session,
            max_new_tokens=NEW_TOKENS,
            images=tuple(Image(url=name) for name in names),
            messages=tuple(
                Said(role, tuple(self.shown(part) for part in said)) for role, said in parts
            ),
        )

    def check(self, told: Sequence[Told], session: str = "s") -> None:
        """The last turn is what stock `transformers` make of this conversation: its template, and `generate` from scratch."""
        told = _in_parts(told)
        held, model, text = self.session(session), self.model, self.model.text
        messages = [
            text.chat_message(Said(role, tuple(self.shown(part) for part in said)))
            for role, said in told
        ]
        expansions = [image.ids for image in held.state.images]
        assert held.state.dialogue.rendered == text._render(messages, expansions)
        turn = held.state.turns[-1]
        prompt, reply = held.state.log[: turn.usage.prompt_tokens], held.state.log
        pictures = [part for _, said in told for part in said if part in self.pictures]
        inputs: dict[str, Any] = {}
        if model.encoder is not None and pictures:
            shown = [[self.pictures[name] for name in pictures]]
            made = model.encoder.towers[0]._processor.image_processor(shown, return_tensors="pt")
            inputs = {name: made[name] for name in made if isinstance(made[name], torch.Tensor)}
            if "image_grid_thw" in made:
                mask = model.encoder.mask(prompt, held.state.images)
                inputs["mm_token_type_ids"] = torch.tensor([list(mask)], dtype=torch.int)
        generated = stock_reply(model, prompt, NEW_TOKENS, **inputs)
        while generated and generated[-1] in model.eos_ids:
            generated.pop()
        assert reply[turn.usage.prompt_tokens :] == generated

    def shown(self, part: str) -> str | None:
        """A text, or None for a picture."""
        return None if part in self.pictures else part

    def session(self, name: str = "s") -> Any:
        """The session, also one that waits for the next request without a header."""
        kept = self.harness.kind.turns.implicit._idle.get(name)
        return kept.session if kept else self.harness.engine.table.get(name)


def _in_parts(told: Sequence[Told]) -> list[tuple[str, list[str]]]:
    return [(role, [said] if isinstance(said, str) else list(said)) for role, said in told]


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def chat(session: str, *messages: tuple[str, tuple[str | None, ...]]) -> Chat:
    said = tuple(Said(role, parts) for role, parts in messages)
    return Chat(session_id=session, max_new_tokens=NEW_TOKENS, messages=said)
