"""OpenAI's client asks for responses: conversations that the server keeps, with pictures, streams and branches."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.e2e.server import ENDLESS, ROOT, profile_server
from tests.e2e.speak import DEADLINE_S, DIALOGUE, SCENE_BASE64, Speaker, eventually
from tests.support.open_responses import check_event, check_response, events_of, validating
from tests.support.tiny import llama, save
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

QUESTIONS = [question for question, _ in DIALOGUE]
ANSWERS = [answer for _, answer in DIALOGUE]


SCENE_URL = f"data:image/png;base64,{SCENE_BASE64}"


def client_of(server: LocalServer) -> OpenAI:
    """A client that checks each response against the published document."""
    return OpenAI(
        base_url=f"{server.http_url}/v1",
        api_key="none",
        timeout=DEADLINE_S,
        max_retries=0,
        http_client=validating(),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server of its own: the sessions of responses stay open."""
    folder = tmp_path_factory.mktemp("responses")
    with profile_server(Profile.ASGI, folder, name="responses", endless=True) as server:
        yield server


@pytest.fixture
def client(server: LocalServer) -> Iterator[OpenAI]:
    """A client of it."""
    with client_of(server) as client:
        yield client


def shown(text: str) -> Any:
    """A question with the scene."""
    image = {"type": "input_image", "image_url": SCENE_URL, "detail": "auto"}
    return [{"role": "user", "content": [image, {"type": "input_text", "text": text}]}]


def endless(**fields: Any) -> dict[str, Any]:
    """A request whose reply goes on until it is ended."""
    num_tokens = ENDLESS["max_new_tokens"]
    more = {"ignore_eos": True}
    return {
        "model": "chat",
        "input": shown("Go on."),
        "max_output_tokens": num_tokens,
        "extra_body": more,
        **fields,
    }


def num_cached(response: Any) -> int:
    return int(response.usage.input_tokens_details.cached_tokens)


def test_a_picture_is_sent_once(client: OpenAI) -> None:
    """Each later question alone; its response computes nothing again."""
    response = client.responses.create(model="chat", input=shown(QUESTIONS[0]))
    assert response.output_text == ANSWERS[0]
    for question, answer in DIALOGUE[1:]:
        before = response
        response = client.responses.create(
            model="chat", input=question, previous_response_id=before.id
        )
        assert response.output_text == answer
        assert before.usage is not None
        assert num_cached(response) >= before.usage.total_tokens - 1
    client.responses.delete(response.id)


def test_a_client_that_sends_all_items_computes_only_what_is_new(client: OpenAI) -> None:
    """As those do that keep the conversation themselves, with the picture each time."""
    items: list[Any] = []
    for number, (question, answer) in enumerate(DIALOGUE):
        items += shown(question) if number == 0 else [{"role": "user", "content": question}]
        response = client.responses.create(model="chat", input=items, store=number % 2 == 0)
        assert response.output_text == answer
        assert number == 0 or num_cached(response) > 50  # others may lend the first one theirs
        items += [item.model_dump(exclude_none=True) for item in response.output]


def test_responses_are_used_as_shown(client: OpenAI, capsys: pytest.CaptureFixture[str]) -> None:
    """The block of docs/responses.md, with a picture."""
    text = (ROOT / "docs" / "responses.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    block = block.replace("http://127.0.0.1:8080/v1", str(client.base_url))
    exec(block.replace("data:image/png;base64,...", SCENE_URL), {})
    assert capsys.readouterr().out == "red\nblue True\n"


def test_a_client_may_refer_to_replies(client: OpenAI) -> None:
    """It sends its own items again, and the ids of the others."""
    items = shown(QUESTIONS[0])
    for number, (question, answer) in enumerate(DIALOGUE[:3]):
        if number > 0:
            items.append({"role": "user", "content": question})
        response = client.responses.create(model="chat", input=items)
        assert response.output_text == answer
        assert number == 0 or num_cached(response) > 50  # others may lend the first one theirs
        assert response.id.endswith(f"_{number + 1}")
        items += [{"type": "item_reference", "id": str(item.id)} for item in response.output]
    items[0] = {"role": "user", "content": "Something else."}
    with pytest.raises(openai.BadRequestError, match="send all items themselves"):
        client.responses.create(model="chat", input=items)


def test_an_older_response_branches(client: OpenAI) -> None:
    """Both branches go on."""
    first = client.responses.create(model="chat", input=shown(QUESTIONS[0]))
    one = client.responses.create(model="chat", input=QUESTIONS[1], previous_response_id=first.id)
    two = client.responses.create(model="chat", input=QUESTIONS[2], previous_response_id=first.id)
    assert (one.output_text, two.output_text) == (ANSWERS[1], ANSWERS[2])
    for response in (one, two):
        last = client.responses.create(
            model="chat", input=QUESTIONS[0], previous_response_id=response.id
        )
        assert last.output_text == ANSWERS[0]
        assert num_cached(last) > 0
        listed = client.responses.input_items.list(last.id, order="asc")
        assert [item.type for item in listed] == ["message"] * 5


def test_a_stream_goes_on_after_any_of_its_events(server: LocalServer) -> None:
    """From the server's memory: every event again, or what follows the one with a certain number."""
    base = f"{server.http_url}/v1/responses"
    asked = {"input": shown(QUESTIONS[0]), "stream": True, "text": {"format": {"type": "text"}}}
    with httpx.stream("POST", base, json=asked, timeout=DEADLINE_S) as answer:
        events = list(events_of(answer.iter_lines()))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ANSWERS[0]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    whole = _text(events)
    path = f"{base}/{events[0]['response']['id']}"
    for after in range(-1, numbers[-1] + 1):
        parameters = {"stream": "true", "starting_after": str(after)}
        with httpx.stream("GET", path, params=parameters, timeout=DEADLINE_S) as answer:
            rest = list(events_of(answer.iter_lines()))
        before = [event for event in events if event["sequence_number"] <= after]
        assert all(event["sequence_number"] > after for event in rest)
        assert whole.endswith(_text(rest))
        assert len(_text(rest)) <= len(whole) - len(_text(before))
        assert rest == [] or rest[-1] == events[-1]


def _text(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("delta", "") for event in events)


def test_an_engine_dies_in_a_stream(
    server: LocalServer, speak: Callable[[LocalServer], Speaker]
) -> None:
    """The stream goes on; a response in the background ends as if nothing had happened."""
    speaker = speak(server)
    with client_of(server) as client:
        kept = client.responses.create(**endless(background=True, max_output_tokens=300))
        stream = client.responses.create(**endless(stream=True, max_output_tokens=300))
        events = iter(stream)
        text = next(event.delta for event in events if event.type == "response.output_text.delta")
        os.kill(speaker.engine_pid(), signal.SIGKILL)
        rest = list(events)
        text += "".join(e.delta for e in rest if e.type == "response.output_text.delta")
        last: Any = rest[-1]
        assert last.type == "response.incomplete"
        assert last.response.output_text == text
        eventually(lambda: client.responses.retrieve(kept.id).status != "in_progress")
        assert client.responses.retrieve(kept.id).output_text == text


def test_a_response_in_the_background(client: OpenAI) -> None:
    """It is followed by a stream, and ended; what is there by then stays."""
    response = client.responses.create(**endless(background=True))
    assert response.status == "in_progress"
    assert response.output == []
    with client.responses.retrieve(response.id, stream=True) as stream:
        found: Any = next(event for event in stream if event.type == "response.output_text.delta")
    ended = client.responses.cancel(response.id)
    assert ended.status == "cancelled"
    assert ended.output_text.startswith(found.delta)
    assert client.responses.cancel(response.id).output_text == ended.output_text
    following = client.responses.create(
        model="chat", input=QUESTIONS[0], previous_response_id=response.id
    )
    assert num_cached(following) > 0


def test_a_stream_in_the_background_goes_on_without_its_client(client: OpenAI) -> None:
    """It disconnects after the first piece."""
    stream = client.responses.create(**endless(stream=True, background=True, max_output_tokens=400))
    with stream:
        created: Any = next(iter(stream))
    name = created.response.id
    eventually(lambda: client.responses.retrieve(name).status == "incomplete")
    usage = client.responses.retrieve(name).usage
    assert usage is not None
    assert usage.output_tokens == 400


def test_nothing_is_left_of_a_response_that_is_not_stored(client: OpenAI) -> None:
    """It may follow one that is."""
    first = client.responses.create(model="chat", input=shown(QUESTIONS[0]))
    second = client.responses.create(
        model="chat", input=QUESTIONS[1], previous_response_id=first.id, store=False
    )
    assert second.output_text == ANSWERS[1]
    assert num_cached(second) > 0
    with pytest.raises(openai.NotFoundError, match=f"Response with id '{second.id}' not found."):
        client.responses.retrieve(second.id)
    assert client.responses.retrieve(first.id).output_text == ANSWERS[0]


def test_a_deleted_response_is_gone(client: OpenAI) -> None:
    """One after it stays, and can be continued."""
    first = client.responses.create(model="chat", input=shown(QUESTIONS[0]))
    second = client.responses.create(
        model="chat", input=QUESTIONS[1], previous_response_id=first.id
    )
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(model="chat", input="x", previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.param == "previous_response_id"
    third = client.responses.create(
        model="chat", input=QUESTIONS[2], previous_response_id=second.id
    )
    assert third.output_text == ANSWERS[2]


def test_a_conversation(client: OpenAI) -> None:
    """Its items come from its beginning, from responses and from the client; the picture is one of them."""
    made = client.conversations.create(items=shown(QUESTIONS[0]), metadata={"topic": "shapes"})
    first = client.responses.create(model="chat", conversation=made.id, input=[])
    assert first.output_text == ANSWERS[0]
    note: Any = [{"type": "message", "role": "user", "content": "A note."}]
    (added,) = client.conversations.items.create(made.id, items=note).data
    second = client.responses.create(model="chat", conversation={"id": made.id}, input=QUESTIONS[1])
    assert second.conversation is not None
    assert second.conversation.id == made.id
    assert num_cached(second) > 0
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [getattr(item, "role", None) for item in items] == [
        "user",
        "assistant",
        "user",
        "user",
        "assistant",
    ]
    document: Any = items[0]
    assert document.content[0].image_url is None
    assert client.conversations.items.retrieve(str(added.id), conversation_id=made.id) == added
    updated = client.conversations.update(made.id, metadata={"topic": "colors"})
    assert updated == client.conversations.retrieve(made.id)
    assert (updated.metadata, updated.created_at) == ({"topic": "colors"}, made.created_at)
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{made.id}' not found."):
        client.conversations.retrieve(made.id)


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # of OpenAI's client
def test_frames_over_a_websocket(client: OpenAI) -> None:
    """A response that is warmed up, continued, and outlives its connection; and two that are not stored."""
    with client.responses.connect() as socket:
        socket.response.create(model="chat", input=shown(QUESTIONS[0]), generate=False)
        warm = _last(socket)
        assert warm.output == []
        socket.response.create(
            model="chat", input=[], previous_response_id=warm.id, stream_id="one"
        )
        first = _last(socket, stream_id="one")
        assert first.output_text == ANSWERS[0]
        socket.response.create(model="chat", input=QUESTIONS[0], store=False)
        unstored = _last(socket)
        socket.response.create(
            model="chat", input="And?", store=False, previous_response_id=unstored.id
        )
        assert num_cached(_last(socket)) > 0
        socket.send_raw('{"type": "response.cancel"}')
        refused: Any = socket.recv()
        assert (refused.type, refused.status, refused.error.param) == ("error", 400, "type")
    again = client.responses.create(model="chat", input=QUESTIONS[1], previous_response_id=first.id)
    assert again.output_text == ANSWERS[1]
    eventually(lambda: _is_gone(client, unstored.id))


def _last(socket: Any, stream_id: str | None = None) -> Any:
    """The response at the end of its events, each of which is checked."""
    for event in socket:
        document = event.to_dict()
        assert document.pop("stream_id", None) == stream_id
        check_event(document)
        if event.type in ("response.completed", "response.incomplete"):
            return event.response
    raise AssertionError("the socket was closed")


def _is_gone(client: OpenAI, name: str) -> bool:
    try:
        client.responses.retrieve(name)
    except openai.NotFoundError:
        return True
    return False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": shown("x")[0]["content"]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1_1"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_a_wrong_field_is_named(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    """In the message as well, which is all that a client shows."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/responses", body={"model": "chat", "input": "x", **fields}, cast_to=object)
    assert refused.value.param == param
    assert param in refused.value.message


def test_another_node_of_the_store_goes_on(tmp_path: Path) -> None:
    """The first one is stopped; the second one reads the stream again, and continues it."""
    model = save(llama(), tmp_path / "model")
    store = {"store": {"url": f"file://{tmp_path / 'store'}"}}
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    first, second = (
        profile_server(
            Profile.ASGI, folder, name=f"responses-{folder.name}", model=model, handler=store
        )
        for folder in folders
    )
    with first, client_of(first) as client:
        asked: Any = {"model": "chat", "input": "Hello", "max_output_tokens": 20, "stream": True}
        events = [event.to_dict() for event in client.responses.create(**asked)]
        response: Any = events[-1]["response"]
        expected = client.responses.create(
            model="chat", input="And?", previous_response_id=response["id"], max_output_tokens=9
        )
        client.responses.delete(expected.id)
    with second, client_of(second) as client:
        after = events[4]["sequence_number"]
        rest = client.responses.retrieve(response["id"], stream=True, starting_after=after)
        assert next(iter(rest)).sequence_number > after
        assert client.responses.retrieve(response["id"]).to_dict() == response
        check_response(response)
        again = client.responses.create(
            model="chat", input="And?", previous_response_id=response["id"], max_output_tokens=9
        )
        assert again.output_text == expected.output_text
        assert again.id == expected.id
