"""Steps that are computed before the host has done the work of the step before: replies are the same as without."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.harness import Harness, reference_reply
from tests.support.pictures import noise
from tests.support.running_ahead import ahead, runner_of, with_graphs
from tests.support.tiny import MODELS
from ts_stateful.language.kernels.gpu.cuda_graphs import DecodeGraphs
from ts_stateful.language.kv.spans import Rows
from ts_stateful.language.network.load import Model
from ts_stateful.protocol.requests import Cancel, Close, Fork, Open, Prompt
from ts_stateful.protocol.response_format import Regex

QUESTIONS = ("Hi", "What color is the circle?", "And the square? " * 3)
Act = Callable[[Harness], object]


@cache
def llama() -> Model:
    return with_graphs()


def prompt(name: str, text: str = "Hi", **fields: Any) -> Act:
    fields = {"max_new_tokens": 12, "ignore_eos": True, **fields}
    return lambda harness: harness.submit(Prompt(session_id=name, prompt=text, **fields))


def steps(count: int) -> Act:
    """Return so many steps, fewer if the engine has nothing more to do."""

    def run(harness: Harness) -> None:
        for _ in range(count):
            harness.pump()
            if harness.engine.busy:
                harness.steps(1)

    return run


def command(request: Any) -> Act:
    def submit(harness: Harness) -> None:
        harness.submit(request)
        harness.pump()

    return submit


def events(harness: Harness, acts: list[Act]) -> dict[str, list[Any]]:
    """Return all events of an engine after these acts; its clock stands still."""
    for name in "abc":
        harness.open(name)
    for act in acts:
        act(harness)
    harness.run()
    return {
        name: [(event.kind, event.body) for event in of_request]
        for name, of_request in harness.events.items()
    }


def check(acts: list[Act], model: Model | None = None) -> tuple[Harness, dict[str, list[Any]]]:
    """Assert that every event is the same without computing ahead; return the engine that did."""
    model = model or llama()
    harness = ahead(model)
    found = events(harness, acts)
    assert found == events(Harness(model), acts)
    assert runner_of(harness).runs_ahead  # no defect has ended it
    return harness, found


@pytest.mark.parametrize("name", ["llama", "gpt2", "llava", "qwen2_vl"])
def test_replies_are_what_generate_makes(name: str) -> None:
    """Sessions of different lengths, which join and leave, with images and without, in two turns each."""
    model = with_graphs(name)
    harness = ahead(model)
    for session in "abc":
        assert "error" not in harness.open(session, [noise(1)] if model.encoder else [])
    pictures = dict(harness.media)
    for _ in range(2):
        for number, session in enumerate("abc"):
            text = QUESTIONS[number]
            asked = Prompt(session_id=session, prompt=text, max_new_tokens=9 + 2 * number)
            harness.submit(asked)
            harness.steps(2)
        harness.run()
        for number, session in enumerate("abc"):
            picture = f"picture-{number}"
            harness.media = {picture: pictures[picture]} if pictures else {}
            reference_reply(model, harness, session, 9 + 2 * number)
        harness.media = pictures
    assert runner_of(harness).num_ahead > 20


def test_every_step_but_the_first_is_computed_ahead() -> None:
    """Alone, a reply's first token comes from its prompt's pass, and no pass follows its last one."""
    harness = ahead(llama())
    harness.open("a")
    harness.prompt("a", "Hi", max_new_tokens=10, ignore_eos=True)
    assert runner_of(harness).num_ahead == 9


def test_nothing_is_computed_ahead_on_a_cpu() -> None:
    """It would be the same work in another order."""
    harness = Harness(llama())
    assert not runner_of(harness).runs_ahead


def test_models_without_graphs_compute_nothing_ahead() -> None:
    """Their passes need the ids on the host."""
    model = MODELS["llama"]()
    harness = ahead(model)
    harness.open("a")
    harness.prompt("a", "Hi", max_new_tokens=6)
    assert runner_of(harness).num_ahead == 0
    reference_reply(model, harness, "a", 6)


def test_turns_end_by_length_at_different_times() -> None:
    """A turn that ends with its next token is left out; the others go on."""
    acts = [prompt(name, max_new_tokens=3 + 4 * i) for i, name in enumerate("abc")]
    harness, _ = check(acts)
    assert runner_of(harness).num_ahead >= 2 + 6 + 10 - 3


@pytest.mark.parametrize("kind", ["eos", "stop_token_ids", "stop"])
def test_turns_end_by_their_tokens(kind: str) -> None:
    """Then the row is dropped, and the next turn of the session writes where that pass has written."""
    probe = Harness(llama())
    probe.open("a")
    probe.prompt("a", "Hi", max_new_tokens=12, ignore_eos=True)
    session = probe.engine.table.get("a")
    token = session.state.log[session.state.turns[0].usage.prompt_tokens + 5]
    model, fields = llama(), dict[str, Any]()
    if kind == "eos":
        model = replace(model, eos_ids=frozenset({token}))
    elif kind == "stop":
        fields["stop"] = (session.state.turns[0].text[4:7],)
    else:
        fields["stop_token_ids"] = (token,)
    fields["ignore_eos"] = kind != "eos"
    acts = [
        prompt("a", **fields),
        prompt("b", QUESTIONS[1], **fields),
        steps(4),
        prompt("a", "Again", **fields),
    ]
    harness, _ = check(acts, model)
    ended = harness.engine.table.get("a").state.turns[0]
    assert (ended.finish_reason, ended.usage.completion_tokens < 12) == ("stop", True)
    assert runner_of(harness).num_ahead > 5


@pytest.mark.parametrize("kind", [Cancel, Close])
def test_turns_end_between_steps(kind: Any) -> None:
    """Cancelled, or with their session; the session opens again at once."""
    acts = [
        *map(prompt, "abc"),
        steps(6),
        command(kind(session_id="b")),
        lambda harness: harness.submit(Open(session_id="b"), creates_session=True),
        prompt("b", QUESTIONS[1]),
    ]
    harness, _ = check(acts)
    assert runner_of(harness).num_ahead > 10


def test_sessions_are_forked_in_the_middle() -> None:
    """The copy has what was valid then, and both go on."""
    acts = [
        prompt("a", QUESTIONS[2]),
        steps(9),
        command(Close(session_id="c")),
        command(Fork(session_id="a", new_session_id="c", at_turn=0)),
        prompt("c", QUESTIONS[2]),
        prompt("a", "Again"),
    ]
    harness, _ = check(acts)
    turns = [harness.engine.table.get(name).state.turns[0].text for name in "ac"]
    assert turns[0] == turns[1]


def test_drawn_tokens_are_the_same() -> None:
    """Of rows that are drawn, beside greedy ones."""
    drawn: dict[str, Any] = {"temperature": 1.3, "top_p": 0.9, "top_k": 40}
    harness, _ = check(
        [prompt("a", seed=1, **drawn), prompt("b", seed=2, temperature=0.8), prompt("c")]
    )
    assert runner_of(harness).num_ahead > 20


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.7, "presence_penalty": 0.5},
        {"logit_bias": dict.fromkeys(range(300, 340), -30.0)},
        {"response_format": Regex("[a-c]{3}-[0-9]{6}")},
    ],
    ids=["penalties", "bias", "grammar"],
)
def test_changed_logits_are_chosen_from_as_before(fields: dict[str, Any]) -> None:
    """The pass depends on tokens alone, however they are chosen."""
    harness, _ = check([prompt("a", **fields), prompt("b"), steps(3), prompt("c", **fields)])
    assert runner_of(harness).num_ahead > 15


def test_log_probabilities_are_not_kept_waiting() -> None:
    """They are read after the choice, so nothing is computed ahead as long as a turn asks for them."""
    asked = prompt("a", logprobs=True, top_logprobs=2)
    harness, _ = check([asked, prompt("b", max_new_tokens=6)])
    assert runner_of(harness).num_ahead == 0


def test_drafts_are_computed_as_before() -> None:
    """A step has either drafts, or one that is computed ahead."""
    harness, _ = check([prompt("a", max_new_tokens=40, logit_bias={300: 100.0})])
    assert harness.engine.stats().tokens_drafted > 0
    assert runner_of(harness).num_ahead > 0


def test_long_prompts_are_computed_beside() -> None:
    """Nothing is computed ahead as long as chunks wait, so that they share a pass with the next tokens."""
    harness = ahead(llama())
    for name in "ab":
        harness.open(name)
    harness.submit(Prompt(session_id="a", prompt="Hi", max_new_tokens=60, ignore_eos=True))
    harness.steps(15)
    assert harness.engine.busy
    harness.submit(Prompt(session_id="b", prompt="word " * 30, max_new_tokens=5, ignore_eos=True))
    harness.steps(2)  # the first has its token already
    before = runner_of(harness).num_ahead
    harness.steps(3)
    assert runner_of(harness).num_ahead == before
    harness.run()
    assert runner_of(harness).num_ahead > before
    reference_reply(llama(), harness, "a", 60)
    reference_reply(llama(), harness, "b", 5)


def test_states_that_have_moved_are_computed_again() -> None:
    """More room, or another memory, lacks what the pass has written."""
    harness = ahead(llama())
    harness.open("a")
    harness.submit(Prompt(session_id="a", prompt="Hi", max_new_tokens=30, ignore_eos=True))
    harness.steps(8)
    kv = harness.engine.table.get("a").state.kv
    before = runner_of(harness).num_ahead
    kv.reserve(2 * kv.capacity)
    for part in kv.states:
        part[:, kv.length :] = torch.nan
    harness.steps(1)
    assert runner_of(harness).num_ahead == before
    harness.run()
    assert runner_of(harness).num_ahead > before
    reference_reply(llama(), harness, "a", 30)


class Failing:
    """Graphs that fail when they are given tokens on the device, as often as `errors` has it."""

    def __init__(self, graphs: DecodeGraphs | None, *errors: Exception) -> None:
        assert graphs is not None
        self._graphs, self.errors = graphs, [*errors]

    def __call__(self, rows: Rows, tokens: Tensor | None = None) -> Tensor | None:
        logits = self._graphs(rows, tokens)  # the states are written
        if self.errors:
            raise self.errors.pop(0)
        return logits


def failing(*errors: Exception) -> Harness:
    """Return an engine with two turns in progress, whose passes ahead fail."""
    model = with_graphs()
    model.forward.graphs = Failing(model.forward.graphs, *errors)  # type: ignore[assignment]
    harness = ahead(model)
    for name in "ab":
        harness.open(name)
    for name in "ab":
        harness.submit(Prompt(session_id=name, prompt="Hi", max_new_tokens=20, ignore_eos=True))
    return harness


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_without_memory_the_step_comes_later(error: type[Exception]) -> None:
    """Then the usual pass makes room; the next step is computed ahead again."""
    harness = failing(error("no"), error("no"))
    harness.run()
    assert runner_of(harness).num_ahead > 20
    for name in "ab":
        reference_reply(harness.model, harness, name, 20)


def test_after_a_defect_no_step_is_computed_ahead(caplog: pytest.LogCaptureFixture) -> None:
    """Replies go on without it, and the log has the reason once."""
    harness = failing(RuntimeError("shapes differ"), RuntimeError("shapes differ"))
    harness.run()
    assert runner_of(harness).num_ahead == 0
    (record,) = [r for r in caplog.records if "ahead" in r.getMessage()]
    assert "RuntimeError: shapes differ" in record.getMessage()
    for name in "ab":
        reference_reply(harness.model, harness, name, 20)


def test_a_device_that_is_poisoned_ends_the_engine() -> None:
    """As in any other pass."""
    with pytest.raises(torch.AcceleratorError):
        failing(torch.AcceleratorError("illegal address")).run()


def test_a_pass_that_fails_disturbs_nothing_that_was_computed_ahead() -> None:
    """The other turns use their rows although the step is tried again, turn by turn."""
    harness = ahead(llama())
    for name in "abc":
        harness.open(name)
    for name in "ab":
        harness.submit(Prompt(session_id=name, prompt="Hi", max_new_tokens=20, ignore_eos=True))
    harness.steps(8)
    before = runner_of(harness).num_ahead

    def refuse(module: Any, args: Any, kwargs: Any) -> None:
        raise RuntimeError("defective")

    failed = harness.submit(Prompt(session_id="c", prompt="Hi", max_new_tokens=3))
    hook = llama().network.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        harness.pump()
        harness.engine.step()
    finally:
        hook.remove()
    runner_of(harness).runs_ahead = True  # the pass ahead of this step failed, too
    assert harness.last(failed)["error"]["code"] == "internal"
    assert runner_of(harness).num_ahead == before + 2
    harness.run()
    for name in "ab":
        reference_reply(llama(), harness, name, 20)


def random_acts(seed: int) -> list[Act]:
    """Return what clients may do, in any order, with four sessions."""
    dice, names = random.Random(seed), "abcd"

    def ask() -> Act:
        choices: list[dict[str, Any]] = [
            {},
            {"temperature": 1.5, "seed": dice.randrange(99)},
            {"temperature": 0.7, "top_k": 9, "seed": 3, "stop": ("e", "a ")},
            {"stop": (" ",)},
            {"repetition_penalty": 1.4},
            {"ignore_eos": False},
            {"stream": True},
        ]
        fields = dice.choice(choices)
        text, count = dice.choice(QUESTIONS), dice.randrange(1, 25)
        return prompt(dice.choice(names), text, max_new_tokens=count, **fields)

    def end() -> Act:
        return command(dice.choice([Cancel, Close])(session_id=dice.choice(names)))

    def fork() -> Act:
        source, new = dice.sample(names, 2)
        return command(Fork(session_id=source, new_session_id=new, at_turn=0))

    def begin() -> Act:
        asked = Open(session_id=dice.choice(names))
        return lambda harness: harness.submit(asked, creates_session=True)

    def evict() -> Act:
        return lambda harness: harness.engine.table.evict_idle()

    kinds = [ask, ask, ask, end, fork, begin, evict]
    acts = []
    for _ in range(40):
        acts += [dice.choice(kinds)(), steps(dice.randrange(4))]
    return acts


@pytest.mark.parametrize("seed", range(6))
def test_random_schedules_give_the_same_events(seed: int) -> None:
    """Whatever clients do: prompts, cancels, forks, ends and evictions, between any two steps."""
    harness, found = check(random_acts(seed))
    assert sum(map(len, found.values())) > 40
    assert runner_of(harness).num_ahead > 20
