"""Grammars of replies, compiled on threads of their own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from llguidance.hf import from_tokenizer
from lru import LRU

from ts_stateful.clock import Clock
from ts_stateful.engine.services import WorkQueue
from ts_stateful.language.grammar.matcher import FIELD, Matcher
from ts_stateful.language.network.load import Model
from ts_stateful.language.text.reply_parser import ReplyTemplate
from ts_stateful.protocol.chat import Tool
from ts_stateful.protocol.defects import defect
from ts_stateful.protocol.errors import InvalidRequest, StatefulError
from ts_stateful.protocol.response_format import (
    Choice,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    ResponseFormat,
)

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["CallsOrForm", "Compiled", "GrammarCompiler", "grammar_of_calls", "load_vocabulary"]

logger = logging.getLogger(__name__)

Compiled = Matcher | StatefulError


class CallsOrForm(msgspec.Struct, frozen=True):
    """A reply that is calls of tools, or has the `form` if there is one; the model decides."""

    calls: Grammar
    form: ResponseFormat | None


_JSON_OPTIONS: Final[JsonCompileOptions] = {
    "coerce_one_of": True,
    "lenient": True,  # keywords that no grammar has are warnings
    # Bounded, or a model could go on with blanks for ever.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,24}",
}
"""The kind of JSON that replies may have."""
_DEADLINE_S = 30.0
_REMEMBERED = 32  # compiled grammars
# Warnings that refuse no schema. In JSON schema a `format` that is not known is a note.
_HARMLESS = ("Unknown format", "oneOf")


def load_vocabulary(model: Model) -> LLTokenizer | InvalidRequest:
    """Return the tokens of a model as the matchers need them, or the refusal if its tokenizer is of no such kind.

    It takes a second for 128,000 tokens, in which no other thread of Python runs.
    """
    eos_ids = sorted(model.eos_ids) or None
    num_tokens = max(model.forward.vocab_size, len(model.tokenizer))  # some are never generated
    try:
        return from_tokenizer(model.tokenizer, n_vocab=num_tokens, eos_token=eos_ids)
    except Exception as error:  # the library's errors have no type of their own
        logger.warning("%s: replies cannot be given a form: %s", model.name, error)
        return InvalidRequest(
            "the tokens of this model cannot be joined to such texts, only to words", field=FIELD
        )


class GrammarCompiler:
    """Compiles grammars for one model; results arrive through the engine's queue.

    `vocabulary` is of `load_vocabulary`; every form is refused if that is a refusal.
    """

    def __init__(
        self,
        vocabulary: LLTokenizer | InvalidRequest,
        queue: WorkQueue,
        executor: Executor,
        clock: Clock,
    ) -> None:
        self._vocabulary = vocabulary
        self._queue = queue
        self._executor = executor
        self._clock = clock
        self._known: LRU[bytes, Matcher] = LRU(_REMEMBERED)
        self._waiting: dict[Future[Matcher], tuple[float, Callable[[Compiled], None]]] = {}

    def is_special(self, token: int) -> bool:
        """Return True if grammars have a token by its name alone: no text in them stands for it."""
        return isinstance(self._vocabulary, LLTokenizer) and self._vocabulary.is_special_token(
            token
        )

    def compile(
        self, asked: ResponseFormat | CallsOrForm, then: Callable[[Compiled], None]
    ) -> None:
        """Compile a grammar and pass the matcher of a new reply, or the error, to `then`."""
        if isinstance(self._vocabulary, InvalidRequest):
            then(self._vocabulary)
            return
        key = msgspec.json.encode(asked)
        known = self._known.get(key)
        if known is not None:
            then(known.copy())
            return
        job = self._executor.submit(_compile, self._vocabulary, asked)
        self._waiting[job] = (self._clock.monotonic() + _DEADLINE_S, then)
        job.add_done_callback(lambda done: self._queue.put(partial(self._compiled, key, done)))

    def tick(self) -> None:
        """Fail the requests whose grammar takes too long."""
        now = self._clock.monotonic()
        for job, (deadline, then) in list(self._waiting.items()):
            if now >= deadline:
                del self._waiting[job]
                job.cancel()
                message = f"it took more than {_DEADLINE_S:.0f} s to compile; use a simpler one"
                then(InvalidRequest(message, field=FIELD))

    def next_deadline(self) -> float | None:
        """Return the clock's time at which `tick` has something to do, or None."""
        return min((deadline for deadline, _ in self._waiting.values()), default=None)

    def _compiled(self, key: bytes, job: Future[Matcher]) -> None:
        if job not in self._waiting:
            return
        _, then = self._waiting.pop(job)
        error = job.exception()
        if error is None:
            self._known[key] = job.result()
            then(job.result().copy())
        elif isinstance(error, StatefulError):
            then(error)
        else:
            then(defect(error, "compiling a grammar"))


def _compile(vocabulary: LLTokenizer, asked: ResponseFormat | CallsOrForm) -> Matcher:
    if not isinstance(asked, CallsOrForm):
        return _matcher(vocabulary, asked)
    if asked.form is not None:
        _matcher(vocabulary, asked.form)  # its errors are not those of the tools
    try:
        return _matcher(vocabulary, asked)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field="tools") from None


def _matcher(vocabulary: LLTokenizer, asked: ResponseFormat | CallsOrForm) -> Matcher:
    try:
        text = _grammar(asked)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(str(error)[:500], field=FIELD) from None
    # They bound the time to compile a grammar to a second, that of a step to some milliseconds, and memory to some 40 MB.
    limits = LLParserLimits(step_lexer_fuel=100_000, max_lexer_states=20_000, verbose_errors=False)
    made = LLMatcher(vocabulary, text, log_level=0, limits=limits)
    matcher = Matcher(made, vocabulary.vocab_size)
    matcher.compute_mask()  # shows an error, and whether it takes too long
    lost = [one for one in made.get_grammar_warnings() if not one.startswith(_HARMLESS)]
    if lost and isinstance(asked, JsonSchema) and not _is_lenient(asked.schema):
        remedy = 'leave that to the model by "x-guidance": {"lenient": true} in the schema'
        raise InvalidRequest(f"{lost[0]}: {remedy}, or leave it out", field=FIELD)
    return matcher


def _is_lenient(schema: dict[str, Any]) -> bool:
    """Return True if a client asks for no more of a schema than a grammar has."""
    options = schema.get("x-guidance")
    return isinstance(options, dict) and options.get("lenient") is True


def _grammar(asked: ResponseFormat | CallsOrForm) -> str:
    """Return a grammar in the library's own form."""
    if isinstance(asked, CallsOrForm):
        if asked.form is None:
            return _grammar(asked.calls)
        parts = [_part("calls", _grammar(asked.calls)), _part("form", _grammar(asked.form))]
        return json.dumps({"grammars": [{"lark_grammar": "start: @calls | @form"}, *parts]})
    if isinstance(asked, JsonObject):
        return _json({"type": "object"})
    if isinstance(asked, JsonSchema):
        return _json(asked.schema)
    if isinstance(asked, Choice):
        options = (json.dumps(option, ensure_ascii=False) for option in asked.options)
        return str(LLMatcher.grammar_from_lark(f"start: {' | '.join(options)}"))
    if isinstance(asked, Regex):
        return str(LLMatcher.grammar_from_regex(asked.pattern))
    assert isinstance(asked, Grammar)
    return str(grammar_from("grammar", asked.grammar))


def _part(name: str, grammar: str) -> dict[str, Any]:
    """Return a grammar as a part of another one."""
    is_text = not grammar.startswith("{")  # of Lark; else a JSON object with a list of one grammar
    part = {"lark_grammar": grammar} if is_text else json.loads(grammar)["grammars"][0]
    return {**part, "name": name}


def _json(schema: dict[str, Any]) -> str:
    return str(LLMatcher.grammar_from_json_schema(schema, defaults=_JSON_OPTIONS))


def grammar_of_calls(
    template: ReplyTemplate,
    tools: Sequence[Tool],
    *,
    special: Collection[str],
    parallel: bool,
) -> Grammar | None:
    """Return a grammar of calls of these tools: one, or with `parallel` one or more.

    `special` are the tokens that no ordinary text has. Return None if the model writes calls in another form than JSON between
    two marks.
    """
    if template.call_marks is None:
        return None
    begin, end = (mark if mark in special else json.dumps(mark) for mark in template.call_marks)
    more = ' ("\\n" call)*' if parallel else ""
    bodies = " | ".join(f"body{index}" for index in range(len(tools)))
    rules = [f"start: call{more}", f'call: {begin} "\\n" ({bodies}) "\\n" {end}']
    for index, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        # A schema of its own, because references in it begin at its root.
        schema = {**(tool.parameters or {"type": "object"}), "x-guidance": _JSON_OPTIONS}
        rules.append(f'body{index}: {json.dumps(head)} arguments{index} "}}"')
        rules.append(f"arguments{index}: %json {json.dumps(schema)}")
    return Grammar("\n".join(rules))
