"""From conversation to ids: the ids that a turn appends, and templates that rewrite."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support.tiny import CHATML, REWRITING, VICUNA, tokenizer_of
from ts_stateful.config.schema import ConfigError
from ts_stateful.language.text.chat_template import ChatText
from ts_stateful.language.text.dialogue import Dialogue, common_prefix
from ts_stateful.protocol.chat import Said, ToolCall
from ts_stateful.protocol.errors import InvalidRequest

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TRIMMING = CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")


def chat(template: str | None = CHATML) -> ChatText:
    tokenizer = tokenizer_of(*SPECIAL, template=template)
    return ChatText(tokenizer, tokenizer)


TOKENIZER = tokenizer_of(*SPECIAL)


def encode(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False).input_ids)


class Talk:
    """A dialogue and the log of its ids, as an engine keeps them."""

    def __init__(self, text: ChatText) -> None:
        self.text = text
        self.dialogue = Dialogue(text.begin(None, 0))
        self.log: list[int] = []

    def turn(self, prompt: str, reply: str) -> int:
        """Run one turn; return how much of the log was kept."""
        message = self.text.user_message(self.dialogue, prompt, 0)
        extension = self.text.extend(self.dialogue, self.log, [message], [])
        said = self.text.reply_message(reply, None, "r")
        turn = self.text.committed(self.dialogue, [message], extension, said, encode(reply))
        self.log = [*self.log[: turn.keep], *turn.ids]
        self.dialogue.apply(turn)
        assert self.dialogue.rendered == extension.rendered
        return extension.keep


@pytest.mark.parametrize("template", [CHATML, TRIMMING, VICUNA, None])
@pytest.mark.parametrize("reply", ["Blue.", " Blue.", "Blue. ", "", "  ", "a\nb\n"])
def test_the_log_is_kept_whole_where_the_template_appends(template: str | None, reply: str) -> None:
    """White space around a reply, and the template's handling of it, make no difference."""
    talk = Talk(chat(template))
    for number, prompt in enumerate(("What color?", "And the other?", "Thanks")):
        before = len(talk.log)
        assert talk.turn(prompt, reply) == before
        assert number == 0 or before > 0


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=4))
def test_the_log_decodes_to_the_conversation(turns: list[tuple[str, str]]) -> None:
    """With a template that changes nothing, the log decodes to the rendered conversation, each reply once."""
    talk = Talk(chat(CHATML))
    expected = ""
    for prompt, reply in turns:
        talk.turn(prompt, reply)
        expected += f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{reply}"
        assert TOKENIZER.decode(talk.log) == expected
        expected += "<|im_end|>\n"


def test_a_rewritten_history_is_tokenized_again() -> None:
    """The longest common prefix is kept."""
    talk = Talk(chat(REWRITING))
    talk.turn("What color?", "Blue, I think.")
    before = len(talk.log)
    assert 0 < talk.turn("And now?", "Red.") < before
    assert "I think" not in TOKENIZER.decode(talk.log)


@pytest.mark.parametrize("template", [CHATML, None])
def test_spelled_out_control_tokens_are_text(template: str | None) -> None:
    """In a prompt, and in a reply that later turns repeat."""
    talk = Talk(chat(template))
    talk.turn("say <|im_end|>", "well <|im_start|>")
    plain = Talk(chat(template))
    plain.turn("say", "well")
    for other in (talk, plain):
        other.turn("and?", "no")
    # The reply's own ids are kept.
    spoken = talk.log.count(1) - encode("well <|im_start|>").count(1)
    assert spoken == plain.log.count(1)
    assert talk.log.count(2) == plain.log.count(2)


def test_an_opening_is_how_every_first_prompt_begins() -> None:
    """The ids that `open` computed are not computed again."""
    text = chat()
    dialogue = Dialogue(text.begin("Be brief.", 0))
    opening = text.opening(dialogue, [])
    for prompt in ("What color is it?", "\n\n?", ""):
        message = text.user_message(dialogue, prompt, 0)
        extension = text.extend(dialogue, opening, [message], [])
        assert extension.keep >= len(opening) - 1


def test_a_malformed_template_is_no_model() -> None:
    """Else each prompt would be refused."""
    with pytest.raises(
        ConfigError, match=r"line 2 of the chat template: .*endfor.*; correct chat_template"
    ):
        chat("{% for m in messages %}\n{% if x %}{% endfor %}")


def test_several_templates_without_a_default_are_no_model() -> None:
    """The error is about the chat template, and has a remedy."""
    tokenizer = tokenizer_of(*SPECIAL)
    tokenizer.chat_template = {"rag": "x", "tool_use": "y"}
    with pytest.raises(ConfigError, match=r"the chat template cannot be used: .*handler\.chatTem"):
        ChatText(tokenizer, tokenizer)


def test_a_template_that_refuses_is_a_typed_error() -> None:
    """Many templates take no system prompt; the error's field names it."""
    text = chat("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}")
    with pytest.raises(InvalidRequest) as caught:
        text.opening(Dialogue(text.begin("Be brief.", 0)), [])
    assert caught.value.field == "system"
    assert caught.value.message.endswith(": no")


def test_a_template_that_fails_refuses() -> None:
    """One that reads arguments of a call one by one takes no others. The error has the template's reason."""
    text = chat("{{ messages[-1].tool_calls[0].function.arguments | items | list }}")
    said = text.chat_message(Said("assistant", ("",), (ToolCall("c", "f", "not json"),)))
    for system in ("", "Be brief."):  # which is not the reason
        with pytest.raises(InvalidRequest, match="this conversation: Can only get item pairs"):
            text.extend(Dialogue(text.begin(None, 0)), [], [said], [], instructions=system)


def test_a_result_has_the_name_of_the_function() -> None:
    """Of the call with its id. A result without a call, or an id, has none, and no other message has."""
    text = chat("{% for m in messages %}{{ m.name }}({{ m.content }}) {% endfor %}")
    calls = ToolCall("1", "color", "{}"), ToolCall("2", "count", "{}"), ToolCall("", "size", "{}")
    results = [Said("tool", (f"r{id_}",), tool_call_id=id_) for id_ in ("2", "1", "3", "")]
    messages = [text.chat_message(said) for said in (Said("assistant", ("",), calls), *results)]
    extension = text.extend(Dialogue(text.begin(None, 0)), [], messages, [])
    assert extension.rendered == "() count(r2) color(r1) (r3) (r) "


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    """The longest that both begin with."""
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


def words(*names: str) -> ChatText:
    """Make the text side of a model whose tokenizer knows whole words only."""
    vocabulary = {name: number for number, name in enumerate(("<unk>", "<end>", *names))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token="<end>"
    )
    return ChatText(tokenizer, tokenizer)


def test_the_name_of_the_unknown_token_is_an_unknown_word() -> None:
    """Where a tokenizer has a token for unknown words, its name in a text is one; other names stay text."""
    text = words("red")
    dialogue = Dialogue(text.begin(None, 0))
    made = [
        text.extend(dialogue, [], [text.user_message(dialogue, prompt, 0)], []).ids
        for prompt in ("red zebra red", "red <unk> red", "red <end> red")
    ]
    assert made[0] == made[1] == [2, 0, 2]
    assert 1 not in made[2]


def test_an_added_word_of_a_text_is_its_token() -> None:
    """As for stock code: only special tokens, and those that the template writes, control anything."""
    template = CHATML.replace("<|im_start|>", "<|im_start|><call>")
    tokenizer = tokenizer_of(*SPECIAL, template=template)
    tokenizer.add_tokens(["<b>", "<call>"])
    text = ChatText(tokenizer, tokenizer)
    dialogue = Dialogue(text.begin(None, 0))

    def count(token: str, prompt: str) -> int:
        message = text.user_message(dialogue, prompt, 0)
        extension = text.extend(dialogue, [], [message], [])
        return extension.ids.count(tokenizer.convert_tokens_to_ids(token))

    assert count("<b>", "is <b>it</b>?") == 1
    assert count("<call>", "is it?") == count("<call>", "is <call> it?") > 0
