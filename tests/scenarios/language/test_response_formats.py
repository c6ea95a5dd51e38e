"""Replies in a form that the request asks for: they follow it, and are what stock code makes under the same mask."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from msgspec import structs
from transformers import LogitsProcessor, LogitsProcessorList

from tests.support.harness import Harness, stock_reply
from tests.support.tiny import MODELS, llama
from ts_stateful.config.schema import load_config
from ts_stateful.language.grammar.compiler import GrammarCompiler, load_vocabulary
from ts_stateful.language.grammar.matcher import Matcher
from ts_stateful.language.network.load import Model, load_model
from ts_stateful.protocol.errors import InvalidRequest
from ts_stateful.protocol.requests import Prompt
from ts_stateful.protocol.response_format import (
    Choice,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    ResponseFormat,
)

NEW_TOKENS = 400
SHAPE = JsonSchema(
    {
        "type": "object",
        "properties": {
            "color": {"enum": ["red", "blue", "gr\u00fcn"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "round": {"type": "boolean"},
        },
        "required": ["color", "count", "round"],
        "additionalProperties": False,
    }
)
FORMATS: dict[str, ResponseFormat] = {
    "schema": SHAPE,
    "regex": Regex("[a-c]{3}-[0-9]{2}"),
    "choice": Choice(("the first", "the second", "d\u00e9j\u00e0 vu")),
    "lark": Grammar('start: "(" start ")" | "x"'),
    "gbnf": Grammar('root ::= "yes" | "no" [0-9]'),
}


class StockMask(LogitsProcessor):  # type: ignore[misc]  # the library is untyped
    """The mask of llguidance by its own functions, in front of stock `generate`."""

    def __init__(self, model: Model, grammar: str, num_prompt: int) -> None:
        vocabulary = load_vocabulary(model)
        assert isinstance(vocabulary, LLTokenizer)
        self._matcher = LLMatcher(vocabulary, grammar)
        self._num_prompt = self._seen = num_prompt
        self._size = vocabulary.vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for token in input_ids[0, self._seen :].tolist():
            self._matcher.consume_token(token)
        self._seen = input_ids.shape[1]
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: self._size].astype(bool)
        return scores.masked_fill(~torch.from_numpy(allowed), -torch.inf)


def reply(harness: Harness, name: str = "s") -> tuple[list[int], list[int]]:
    """The ids of the last turn's prompt and reply."""
    session = harness.engine.table.get(name)
    log, num_prompt = session.state.log, session.state.turns[-1].usage.prompt_tokens
    return log[:num_prompt], log[num_prompt:]


def follows(asked: ResponseFormat, text: str) -> bool:
    """Whether a text has a form, without the library that gave it."""
    if isinstance(asked, JsonSchema | JsonObject):
        document = json.loads(text)
        if asked is SHAPE:
            assert document["color"] in ("red", "blue", "gr\u00fcn")
            assert 0 <= document["count"] <= 99
            assert isinstance(document["round"], bool)
            assert len(document) == 3
        return isinstance(document, dict)
    if isinstance(asked, Regex):
        return re.fullmatch(asked.pattern, text) is not None
    if isinstance(asked, Choice):
        return text in asked.options
    return re.fullmatch(r"\(*x\)*|yes|no[0-9]", text) is not None


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.2, "seed": 5}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("asked", FORMATS.values(), ids=FORMATS)
def test_a_reply_has_the_form_that_is_asked_for(
    asked: ResponseFormat, settings: dict[str, Any]
) -> None:
    """Turn after turn, and it ends by itself when it is complete; `ignore_eos` does not make it longer."""
    harness = Harness(llama())
    harness.open("s")
    for question in ("What color is it?", "And now?"):
        answer = harness.prompt(
            "s", question, max_new_tokens=NEW_TOKENS, response_format=asked, **settings
        )
        assert answer["finish_reason"] == "stop", answer
        assert follows(asked, answer["text"])
    again = harness.prompt(
        "s", "Again?", max_new_tokens=NEW_TOKENS, response_format=asked, ignore_eos=True
    )
    assert follows(asked, again["text"])
    plain = harness.prompt("s", "And freely?", max_new_tokens=4, ignore_eos=True)
    assert plain["usage"]["completion_tokens"] == 4


GRAMMARS = {
    "schema": LLMatcher.grammar_from_json_schema(
        SHAPE.schema, defaults={"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,24}"}
    ),
    "regex": LLMatcher.grammar_from_regex("[a-c]{3}-[0-9]{2}"),
}


@pytest.mark.parametrize("name", sorted(set(MODELS) & {"gpt2", "llama", "llava", "qwen2_vl"}))
@pytest.mark.parametrize("kind", GRAMMARS)
def test_a_reply_is_what_generate_makes_under_the_same_mask(name: str, kind: str) -> None:
    """On several architectures, greedily."""
    model = MODELS[name]()
    harness = Harness(model)
    harness.open("s")
    for question in ("What color is it?", "And now?"):
        harness.prompt("s", question, max_new_tokens=24, response_format=FORMATS[kind])
        prompt, ids = reply(harness)
        mask = StockMask(model, GRAMMARS[kind], len(prompt))
        stock = stock_reply(model, prompt, 24, logits_processor=LogitsProcessorList([mask]))
        assert ids == [token for token in stock if token not in model.eos_ids]


def test_rows_of_a_step_have_their_own_forms() -> None:
    """Each as it would be alone, and one without."""
    model = llama()
    rows: dict[str, ResponseFormat | None] = {**FORMATS, "none": None}
    alone = {}
    for name, asked in rows.items():
        harness = Harness(model)
        harness.open("s")
        alone[name] = harness.prompt("s", "Hi", max_new_tokens=30, response_format=asked)["text"]
    together = Harness(model)
    for name in rows:
        together.open(name)
    asking = {
        name: together.submit(
            Prompt(session_id=name, prompt="Hi", max_new_tokens=30, response_format=asked)
        )
        for name, asked in rows.items()
    }
    together.run()
    assert {name: together.last(request)["text"] for name, request in asking.items()} == alone


def test_a_reply_goes_on_after_a_crash() -> None:
    """The matcher is fed with the ids that the client has: the rest is the same."""
    model = llama()
    first, second = Harness(model), Harness(model)
    for harness in (first, second):
        harness.open("s")
    command = Prompt(
        session_id="s",
        prompt="Hi",
        max_new_tokens=NEW_TOKENS,
        response_format=SHAPE,
        temperature=1.0,
        seed=9,
        stream=True,
    )
    whole = first.submit(command)
    first.run()
    ids = [token for event in first.events[whole] for token in event.token_ids]
    text = "".join(document["text"] for document in first.documents(whole))
    for kept in (1, len(ids) // 2, len(ids) - 1):
        again = Harness(model)
        again.open("s")
        request = again.submit(structs.replace(command), is_retry=True, replay=tuple(ids[:kept]))
        again.run()
        assert "".join(document["text"] for document in again.documents(request)) == text


ADVERSARIAL: dict[str, ResponseFormat] = {
    "unknown type": JsonSchema({"type": "foo"}),
    "not": JsonSchema({"not": {}}),
    "reference": JsonSchema({"$ref": "http://example.com/a.json"}),
    "nested": JsonSchema({"type": "array", "items": {"allOf": [{"$ref": "#/$defs/a"}] * 3}}),
    "combinations": JsonSchema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"{kind}{n}": {}}} for kind in "pq"]} for n in range(26)
            ]
        }
    ),
    "multiple": JsonSchema({"type": "integer", "multipleOf": 999_999_937}),
    "look-around": Regex("(?=a)b"),
    "malformed": Regex("(a"),
    "repetitions": Grammar("start: /a{1000000}/"),
    "no start": Grammar('x: "a"'),
    "no grammar": Grammar("hello"),
}


@pytest.mark.parametrize("asked", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_what_cannot_be_compiled_is_refused(asked: ResponseFormat) -> None:
    """By name, before the turn begins. The session goes on, and the next request does too."""
    harness = Harness(llama())
    harness.open("s")
    error = harness.prompt("s", "Hi", response_format=asked)["error"]
    assert (error["code"], error["field"]) == ("invalid_request", "response_format")
    assert "\n" not in error["message"]
    assert harness.prompt("s", "Hi", max_new_tokens=2)["turn"] == 1


def test_a_schema_may_have_notes() -> None:
    """An unknown `format` is one. What a grammar cannot express is refused, unless the schema leaves it to the model."""
    harness = Harness(llama())
    harness.open("s")
    texts = {"type": "array", "items": {"type": "string", "format": "password"}, "maxItems": 2}
    unique = {**texts, "uniqueItems": True}
    for schema in (texts, {**unique, "x-guidance": {"lenient": True, "item_separator": ","}}):
        asked = JsonSchema(schema)
        answer = harness.prompt("s", "Hi", response_format=asked, max_new_tokens=NEW_TOKENS)
        assert isinstance(json.loads(answer["text"]), list)
    error = harness.prompt("s", "Hi", response_format=JsonSchema(unique))["error"]
    assert error["message"].startswith('Unimplemented keys: ["uniqueItems"]: leave that to')


def test_what_is_wrong_with_a_regex_is_named() -> None:
    """In one line."""
    harness = Harness(llama())
    harness.open("s")
    error = harness.prompt("s", "Hi", response_format=Regex("(a"))["error"]
    assert error["message"].endswith(
        'invalid regex "(a" (in regex): regex parse error: unclosed group'
    )


def test_a_form_can_become_too_complex_in_the_middle() -> None:
    """Of one turn: it is rolled back, and the one beside it goes on."""
    harness = Harness(llama())
    harness.open("s")
    harness.open("beside")
    asked = harness.submit(
        Prompt(session_id="s", prompt="Hi", response_format=JsonObject(), max_new_tokens=50)
    )
    beside = harness.submit(
        Prompt(session_id="beside", prompt="Hi", max_new_tokens=20, ignore_eos=True)
    )
    harness.steps(4)
    (running,) = harness.engine.table.get("s").work
    running.matcher = Broken(running.matcher)
    harness.run()
    error = harness.last(asked)["error"]
    assert (error["code"], error["field"]) == ("invalid_request", "response_format")
    assert harness.last(beside)["usage"]["completion_tokens"] == 20
    assert harness.prompt("s", "Hi", max_new_tokens=2)["turn"] == 1


class Broken:
    """A matcher at the end of its limits."""

    def __init__(self, matcher: Matcher) -> None:
        self.mask = matcher.mask

    def compute_mask(self) -> None:
        raise InvalidRequest("too many items", field="response_format")


def test_nobody_waits_for_a_grammar() -> None:
    """Another turn runs while it is compiled. After the deadline its own is refused, and what comes then is dropped."""
    harness = Harness(llama())
    harness.open("s")
    harness.open("beside")
    waiting = harness.submit(Prompt(session_id="s", prompt="Hi", response_format=JsonObject()))
    beside = harness.submit(Prompt(session_id="beside", prompt="Hi", max_new_tokens=3))
    while harness.engine.busy:
        harness.engine.step()
    assert harness.last(beside)["turn"] == 1
    assert waiting not in harness.events
    deadline = harness.kind.next_deadline()
    assert deadline is not None
    harness.clock.now = deadline
    harness.engine.tick()
    assert "simpler" in harness.last(waiting)["error"]["message"]
    harness.run()
    answer = harness.prompt("s", "Hi", response_format=FORMATS["regex"], max_new_tokens=NEW_TOKENS)
    assert follows(FORMATS["regex"], answer["text"])


def test_a_client_that_leaves_needs_no_grammar() -> None:
    """What is compiled for it later is for nobody."""
    harness = Harness(llama(), {"handler": {"reattachSec": 1.0}})
    harness.open("s")
    request = harness.submit(Prompt(session_id="s", prompt="Hi", response_format=JsonObject()))
    harness.engine.drop(request)
    harness.clock.now += 2
    harness.engine.tick()
    harness.run()
    assert harness.prompt("s", "Hi", max_new_tokens=2)["turn"] == 1


def test_a_grammar_is_compiled_once() -> None:
    """Of the same form; each reply begins at its beginning."""
    harness = Harness(llama())
    compiler: GrammarCompiler = harness.kind._grammars
    for name in ("a", "b"):
        harness.open(name)
        answer = harness.prompt(name, "Hi", response_format=SHAPE, max_new_tokens=NEW_TOKENS)
        assert follows(SHAPE, answer["text"])
    assert len(compiler._known) == 1


def test_it_can_be_switched_off() -> None:
    """The error names the key."""
    harness = Harness(llama(), {"handler": {"structuredOutput": False}})
    harness.open("s")
    error = harness.prompt("s", "Hi", response_format=JsonObject())["error"]
    assert "handler.structuredOutput" in error["message"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_tokenizer_serves(name: str) -> None:
    """Those of all tiny models."""
    assert isinstance(load_vocabulary(MODELS[name]()), LLTokenizer)


def test_a_tokenizer_of_words_is_named_as_the_reason() -> None:
    """The model that is part of this project knows whole words only."""
    folder = Path(__file__).parents[3] / "examples" / "shapes" / "model"
    settings = load_config({"handler": {"model": str(folder)}}).handler
    harness = Harness(load_model(settings, folder, torch.device("cpu")))
    harness.open("s")
    error = harness.prompt("s", "hi", response_format=JsonObject())["error"]
    assert error["field"] == "response_format"
    assert "words" in error["message"]
