"""OpenAI's client asks a model with a tokenizer of bytes for replies of a form."""

from __future__ import annotations

import asyncio
from asyncio import gather
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.server import profile_server
from tests.e2e.speak import DEADLINE_S
from tests.support.tiny import llama, save
from ts_stateful.protocol.profile import Profile
from ts_stateful.serving.server import LocalServer

MESSAGES: Any = [{"role": "user", "content": "What color is the circle?"}]


class Shape(pydantic.BaseModel):
    """An answer."""

    color: Literal["red", "green", "blue", "yellow"]
    sides: int = pydantic.Field(ge=0, le=9)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The front without TorchServe, with a model whose weights are random."""
    folder = tmp_path_factory.mktemp("forms")
    model = save(llama(), folder / "model")
    with profile_server(Profile.ASGI, folder, name="openai-forms", model=model) as server:
        yield server


@pytest.fixture
def client(server: LocalServer) -> Iterator[OpenAI]:
    """A client of it."""
    with OpenAI(
        base_url=f"{server.http_url}/v1", api_key="none", timeout=DEADLINE_S, max_retries=0
    ) as client:
        yield client


def test_a_response_of_a_class(client: OpenAI) -> None:
    """As in a chat; the next response follows it."""
    asked: Any = {"model": "chat", "text_format": Shape, "max_output_tokens": 400}
    first = client.responses.parse(input="What color is the circle?", **asked)
    assert first.output_parsed is not None
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.parse(input="And?", previous_response_id=first.id, **asked)
    assert second.output_parsed is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0
    with client.responses.stream(input="And?", **asked) as stream:
        final = stream.get_final_response()
    assert final.output_parsed is not None


def test_a_reply_of_a_class(client: OpenAI) -> None:
    """The client makes a schema of it, and an object of the reply, whole and as a stream."""
    parsed = client.chat.completions.parse(
        model="chat", messages=MESSAGES, response_format=Shape, max_tokens=400
    )
    shape = parsed.choices[0].message.parsed
    assert shape is not None
    with client.chat.completions.stream(
        model="chat", messages=MESSAGES, response_format=Shape, max_tokens=400
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == shape


def test_a_choice(client: OpenAI) -> None:
    """As vLLM's clients ask for it, of a chat and of a text."""
    body = {"guided_choice": ["blue", "green"]}
    chat = client.chat.completions.create(model="chat", messages=MESSAGES, extra_body=body)
    assert chat.choices[0].message.content in ("blue", "green")
    text = client.completions.create(model="chat", prompt="Once", extra_body=body)
    assert text.choices[0].text in ("blue", "green")


def test_an_error_names_the_field(client: OpenAI) -> None:
    """As it was sent."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="chat", messages=MESSAGES, extra_body={"guided_regex": "("}
        )
    assert refused.value.param == "guided_regex"


def test_the_async_client(server: LocalServer) -> None:
    """Several at the same time, one of them a stream."""

    async def ask() -> list[str]:
        async with AsyncOpenAI(
            base_url=f"{server.http_url}/v1", api_key="none", timeout=DEADLINE_S, max_retries=0
        ) as client:
            create = client.chat.completions.create
            body = {"guided_choice": ["blue", "green"]}
            whole = [create(model="chat", messages=MESSAGES, extra_body=body) for _ in range(4)]
            stream = await create(model="chat", messages=MESSAGES, extra_body=body, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            texts = [reply.choices[0].message.content or "" for reply in await gather(*whole)]
        return [*texts, "".join(pieces)]

    texts = asyncio.run(ask())
    assert len(texts) == 5
    assert set(texts) <= {"blue", "green"}
