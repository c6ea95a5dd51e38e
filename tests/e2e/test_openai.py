"""OpenAI's own client against a real TorchServe."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AzureOpenAI, OpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion

from tests.e2e.server import WINDOW
from tests.e2e.speak import DEADLINE_S, DIALOGUE, HEADER, SCENE, Speaker
from ts_stateful.serving.server import LocalServer

SCENE_URL = f"data:image/png;base64,{base64.b64encode(SCENE.read_bytes()).decode()}"


def connected(server: LocalServer, **options: Any) -> OpenAI:
    return OpenAI(
        base_url=f"{server.http_url}/predictions/chat/1.0/v1",
        api_key="none",
        timeout=DEADLINE_S,
        max_retries=0,
        **options,
    )


@pytest.fixture(params=["continuous", "sequence", "async", "asgi"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """Every profile in turn."""
    server: LocalServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def client(speaker: Speaker) -> Iterator[OpenAI]:
    """A client in the continuous profile."""
    with connected(speaker.server) as client:
        yield client


def shown(text: str) -> dict[str, Any]:
    """A message with the picture."""
    image = {"type": "image_url", "image_url": {"url": SCENE_URL}}
    return {"role": "user", "content": [image, {"type": "text", "text": text}]}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def cached(completion: ChatCompletion) -> int:
    usage = completion.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_without_a_session(server: LocalServer, stream: bool) -> None:
    """Every request has all of it, and computes only what is new."""
    with connected(server) as client:
        messages = [shown(DIALOGUE[0][0])]
        known = 0
        for (_, answer), (question, _) in itertools.pairwise(DIALOGUE[:4]):
            text, usage = ask(client, messages, stream=stream)
            assert text == answer
            details = usage.prompt_tokens_details
            assert details is not None
            assert (details.cached_tokens or 0) >= known - 1
            known = usage.total_tokens
            messages += [said("assistant", text), said("user", question)]


def ask(client: OpenAI, messages: list[Any], *, stream: bool) -> tuple[str, CompletionUsage]:
    if not stream:
        completion = client.chat.completions.create(model="chat", messages=messages)
        (choice,) = completion.choices
        assert choice.finish_reason == "stop"
        assert completion.usage is not None
        return choice.message.content or "", completion.usage
    chunks = list(
        client.chat.completions.create(
            model="chat", messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    (last,) = chunks[-2].choices
    assert last.finish_reason == "stop"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    return text, chunks[-1].usage


def test_with_a_session_header_only_what_is_new_is_computed(server: LocalServer) -> None:
    """The client sends everything all the same; what it has edited counts."""
    messages: list[Any] = [shown(DIALOGUE[0][0])]
    with connected(server) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="chat",
            messages=messages,
            extra_body={"session_id": "NEW_SESSION"},
        )
        session_id, _, expires = raw.headers[HEADER].partition("; ")
        assert expires.startswith("Expires=")
        completion = raw.parse()
        headers = {HEADER: session_id}
        for question, answer in DIALOGUE[1:4]:
            messages += [completion.choices[0].message, said("user", question)]
            known = completion.usage.total_tokens if completion.usage else 0
            completion = client.chat.completions.create(
                model="chat", messages=messages, extra_headers=headers
            )
            assert completion.choices[0].message.content == answer
            assert cached(completion) >= known - 1
        messages[-1] = said("user", "What color is the circle?")
        edited = client.chat.completions.create(
            model="chat", messages=messages, extra_headers=headers
        )
        assert edited.choices[0].message.content == "red"
        assert cached(edited) >= cached(completion)


def test_what_has_no_effect_is_named_in_a_header(server: LocalServer) -> None:
    """Also of a stream. Programs that were written for other servers send it."""
    past = {"role": "assistant", "content": "Hello.", "mood": "good"}
    messages: Any = [{"id": "m-1", **said("user", "Hi")}, past, said("user", "Bye")]
    with connected(server) as client:
        for stream in (False, True):
            raw = client.chat.completions.with_raw_response.create(
                model="", messages=messages, max_tokens=2, user="ann", stream=stream
            )
            ignored = raw.headers["x-ts-stateful-ignored"]
            assert ignored == "user, messages[].id, messages[].mood"
            raw.http_response.read()


def test_a_text_is_continued(server: LocalServer) -> None:
    """Whole, and as a stream; nothing of a chat template is around it."""
    with connected(server) as client:
        whole = client.completions.create(model="chat", prompt="What color is the", max_tokens=5)
        assert whole.object == "text_completion"
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 5)
        stream = client.completions.create(
            model="chat", prompt="What color is the", max_tokens=5, stream=True
        )
        pieces = [choice for chunk in stream for choice in chunk.choices]
        assert "".join(choice.text for choice in pieces) == whole.choices[0].text
        assert pieces[-1].finish_reason == "length"


def test_several_texts(server: LocalServer) -> None:
    """With two replies each, in their order; each is what it is alone."""
    texts = ["What color is the", "Is there a"]
    with connected(server) as client:
        asked: Any = {"model": "chat", "max_tokens": 5}
        alone = [client.completions.create(prompt=text, **asked) for text in texts]
        whole = client.completions.create(prompt=texts, n=2, **asked)
        stream = list(client.completions.create(prompt=texts, n=2, stream=True, **asked))
    expected = [one.choices[0].text for one in alone for _ in range(2)]
    assert [choice.text for choice in whole.choices] == expected
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    usages = [one.usage for one in alone if one.usage is not None]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
    pieces = [choice for chunk in stream for choice in chunk.choices]
    for index, text in enumerate(expected):
        assert "".join(one.text for one in pieces if one.index == index) == text


def test_several_choices(server: LocalServer) -> None:
    """Whole, and as a stream of all of them. The prompt is computed for the first alone."""
    asked: Any = {
        "model": "chat",
        "messages": [shown(DIALOGUE[0][0])],
        "n": 3,
        "temperature": 2,
        "seed": 1,
        "max_tokens": 4,
    }
    with connected(server) as client:
        whole = client.chat.completions.create(**asked)
        texts = [choice.message.content for choice in whole.choices]
        assert [choice.index for choice in whole.choices] == [0, 1, 2]
        pieces = ["", "", ""]
        ends = 0
        for chunk in client.chat.completions.create(**asked, stream=True):
            (choice,) = chunk.choices
            pieces[choice.index] += choice.delta.content or ""
            ends += choice.finish_reason is not None
        assert pieces == texts
        assert ends == 3


def test_log_probabilities(server: LocalServer) -> None:
    """Those of a certain answer, whole and in pieces."""
    messages: Any = [shown(DIALOGUE[0][0])]
    with connected(server) as client:
        whole = client.chat.completions.create(
            model="chat", messages=messages, logprobs=True, top_logprobs=2
        ).choices[0]
        assert whole.logprobs is not None
        scores = whole.logprobs.content or []
        assert "".join(one.token for one in scores) == whole.message.content
        assert all(-0.5 < one.logprob <= 0 and len(one.top_logprobs) == 2 for one in scores)
        chunks = client.chat.completions.create(
            model="chat", messages=messages, logprobs=True, stream=True
        )
        parts = [chunk.choices[0].logprobs for chunk in chunks]
        pieces = [one for part in parts if part for one in part.content or ()]
        assert [(one.token, one.bytes) for one in pieces] == [(o.token, o.bytes) for o in scores]


@pytest.mark.parametrize(
    ("profile", "where"),
    [
        ("asgi", "root"),
        ("asgi", "azure_endpoint"),
        ("asgi", "azure_deployment"),
        ("continuous", "torchserve"),
    ],
)
def test_azures_client(profile: str, where: str, request: pytest.FixtureRequest) -> None:
    """It names the model in the path, which counts; at the root, and after a model's own path."""
    url = request.getfixturevalue(f"{profile}_server").http_url
    bases: dict[str, dict[str, str]] = {
        "root": {"base_url": f"{url}/v1"},
        "azure_endpoint": {"azure_endpoint": url},
        "azure_deployment": {"azure_endpoint": url, "azure_deployment": "chat"},
        "torchserve": {"base_url": f"{url}/predictions/chat/1.0/v1"},
    }
    given: Any = bases[where]
    asked = "another" if where == "azure_deployment" else "chat"
    client = AzureOpenAI(**given, api_key="none", api_version="2024-10-21", max_retries=0)
    with client:
        messages: Any = [said("user", "hi")]
        chat = client.chat.completions.create(model=asked, messages=messages, max_tokens=2)
        assert chat.model == "chat"
        text = client.completions.create(model=asked, prompt="What", max_tokens=2)
        assert text.model == "chat"
        assert client.responses.create(model="chat", input="hi").status == "completed"
        if where != "azure_deployment":
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                client.chat.completions.create(model="another", messages=messages)


def test_models(client: OpenAI) -> None:
    """There is one."""
    assert [model.id for model in client.models.list()] == ["chat"]
    assert client.models.retrieve("chat").owned_by == "torchserve-stateful"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_errors_are_those_that_the_client_knows(client: OpenAI) -> None:
    """By status, with the parameter at fault."""
    messages: Any = [said("user", "hi")]

    def create(**fields: Any) -> Any:
        return client.chat.completions.create(**{"model": "chat", "messages": messages, **fields})

    with pytest.raises(openai.NotFoundError) as missing:
        create(model="gpt-4o")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    for name, value in (("n", 17), ("top_logprobs", 3), ("temperature", 3)):
        with pytest.raises(openai.BadRequestError) as refused:
            create(**{name: value})
        assert refused.value.param == name
        assert name in str(refused.value.body["message"])  # type: ignore[index]
    with pytest.raises(openai.BadRequestError) as long:
        create(messages=[said("user", "color " * WINDOW)])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        create(extra_headers={HEADER: "nobody"})
    assert unknown.value.code == "session_not_found"
    with pytest.raises(openai.APIStatusError) as hidden:
        create(messages=[{"role": "user", "content": [image("http://127.0.0.1/a.png")]}])
    assert hidden.value.status_code == 403
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="chat", input="hi")


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_the_same_body_is_taken_without_the_path(speaker: Speaker) -> None:
    """On SageMaker there is `/invocations` alone."""
    body = {"model": "chat", "messages": [shown("What color is the circle?")], "max_tokens": 8}
    response = httpx.post(
        f"{speaker.server.http_url}/invocations", json=body, timeout=DEADLINE_S, trust_env=False
    )
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == "red"
    assert HEADER not in response.headers
    response = httpx.post(
        f"{speaker.server.http_url}/invocations",
        json={**body, "model": ""},
        timeout=DEADLINE_S,
        trust_env=False,
    )
    assert response.json()["choices"][0]["message"]["content"] == "red"
