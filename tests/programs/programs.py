"""Programs that were written for OpenAI's API, each as its users would write it. Prints what the test checks, as JSON.

Usage: programs.py PROGRAM SERVER_URL IMAGE
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

QUESTIONS = ("What color is the circle?", "Which shape is yellow?", "What color is it?")


class Shape(BaseModel):
    """A shape."""

    model_config = ConfigDict(extra="forbid")  # a model of random weights would add anything

    color: Literal["red", "green", "blue"]
    sides: int = Field(ge=0, le=9)


def langchain(url: str, picture: str) -> dict[str, Any]:
    """Messages with images, `bind_tools`, `with_structured_output`."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def get_color(shape: Literal["circle", "square"]) -> str:
        """Look up the color of a shape."""
        return "red"

    def chat(model: str, **options: Any) -> ChatOpenAI:
        return ChatOpenAI(base_url=url, api_key="none", model=model, max_retries=0, **options)

    messages: list[Any] = []
    texts, cached = [], []
    for number, question in enumerate(QUESTIONS):
        content: Any = question
        if number == 0:
            image = {"type": "image_url", "image_url": {"url": picture}}
            content = [image, {"type": "text", "text": question}]
        messages.append(HumanMessage(content))
        reply = chat("chat").invoke(messages)
        messages.append(reply)
        texts.append(reply.content)
        cached.append(reply.usage_metadata["input_token_details"]["cache_read"])
    asking: list[Any] = [HumanMessage("What color is the circle?")]
    bound = chat("tools").bind_tools([get_color])
    call = bound.invoke(asking)
    (made,) = call.tool_calls
    result = ToolMessage(get_color.invoke(made["args"]), tool_call_id=made["id"])
    answer = bound.invoke([*asking, call, result])
    shape = chat("forms", max_tokens=800).with_structured_output(Shape).invoke("A shape, please.")
    pieces = [chunk.content for chunk in chat("chat").stream(messages[:1])]
    return {
        "texts": texts,
        "cached": cached,
        "called": made["args"],
        "answer": answer.content,
        "shape": shape.model_dump(),
        "streamed": "".join(pieces),
    }


def langchain_responses(url: str, picture: str) -> dict[str, Any]:
    """All messages each time, then what is new alone, after the response before it."""
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI

    found: dict[str, Any] = {"texts": [], "cached": []}
    for options in ({}, {"use_previous_response_id": True}):
        model = ChatOpenAI(
            base_url=url, api_key="none", model="chat", use_responses_api=True, **options
        )
        messages: list[Any] = []
        for number, question in enumerate(QUESTIONS):
            content: Any = question
            if number == 0:
                image = {"type": "image_url", "image_url": {"url": picture}}
                content = [image, {"type": "text", "text": question}]
            messages.append(HumanMessage(content))
            reply = model.invoke(messages)
            messages.append(reply)
            found["texts"].append(reply.text)
            found["cached"].append(reply.usage_metadata["input_token_details"]["cache_read"])
    found["streamed"] = "".join(chunk.text for chunk in model.stream(messages[:1]))
    return found


def pydantic_ai(url: str, picture: str) -> dict[str, Any]:
    """An agent with a picture, one with a tool, one with an output type."""
    from pydantic_ai import Agent, BinaryContent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key="none")

    def model(name: str) -> OpenAIChatModel:
        return OpenAIChatModel(name, provider=provider)

    talking = Agent(model("chat"))
    data = base64.b64decode(picture.partition(",")[2])
    texts, cached, history = [], [], None
    for number, question in enumerate(QUESTIONS):
        prompt: Any = [BinaryContent(data, media_type="image/png"), question]
        run = talking.run_sync(prompt if number == 0 else question, message_history=history)
        history = run.all_messages()
        texts.append(run.output)
        cached.append(run.usage.cache_read_tokens)
    called: list[str] = []
    calling = Agent(model("tools"))

    @calling.tool_plain
    def get_color(shape: Literal["circle", "square"]) -> str:
        """Look up the color of a shape."""
        called.append(shape)
        return "red"

    answer = calling.run_sync("What color is the circle?").output
    shaping = Agent(
        model("forms"), output_type=NativeOutput(Shape), model_settings={"max_tokens": 800}
    )
    shape = shaping.run_sync("A shape, please.").output
    return {
        "texts": texts,
        "cached": cached,
        "called": {"shape": called[0]},
        "answer": answer,
        "shape": shape.model_dump(),
    }


def instructor(url: str, picture: str) -> dict[str, Any]:
    """An object of a class: by a schema, and by a call that is forced."""
    import instructor as library
    from openai import OpenAI

    shapes = []
    for name, mode in (("forms", library.Mode.JSON_SCHEMA), ("tools", library.Mode.TOOLS)):
        client = library.from_openai(OpenAI(base_url=url, api_key="none"), mode=mode)
        shape = client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": "A shape, please."}],
            response_model=Shape,
            max_tokens=800,
            max_retries=0,
        )
        shapes.append(shape.model_dump())
    return {"shape": shapes[0], "called_shape": shapes[1]}


def litellm(url: str, picture: str) -> dict[str, Any]:
    """Messages as dictionaries, whole and as a stream."""
    import litellm as library

    messages: list[Any] = []
    texts, cached = [], []
    for number, question in enumerate(QUESTIONS):
        image = {"type": "image_url", "image_url": {"url": picture}}
        text = {"type": "text", "text": question}
        messages.append({"role": "user", "content": [image, text] if number == 0 else question})
        reply = library.completion(
            model="openai/chat", api_base=url, api_key="none", messages=messages
        )
        messages.append(reply.choices[0].message.model_dump())
        texts.append(reply.choices[0].message.content)
        cached.append(reply.usage.prompt_tokens_details.cached_tokens)
    stream = library.completion(
        model="openai/chat", api_base=url, api_key="none", messages=messages[:1], stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    return {"texts": texts, "cached": cached, "streamed": "".join(pieces)}


def llama_index(url: str, picture: str) -> dict[str, Any]:
    """Its class for servers like OpenAI's."""
    from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(model="chat", api_base=url, api_key="none", is_chat_model=True)
    data = base64.b64decode(picture.partition(",")[2])
    messages: list[Any] = []
    texts, cached = [], []
    for number, question in enumerate(QUESTIONS):
        blocks: list[Any] = [ImageBlock(image=data)] if number == 0 else []
        messages.append(ChatMessage(role="user", blocks=[*blocks, TextBlock(text=question)]))
        reply = model.chat(messages)
        messages.append(reply.message)
        texts.append(reply.message.content)
        cached.append(reply.raw.usage.prompt_tokens_details.cached_tokens)
    pieces = [piece.delta or "" for piece in model.stream_chat(messages[:1])]
    return {"texts": texts, "cached": cached, "streamed": "".join(pieces)}


def main() -> None:
    """Run one program."""
    name, url, image = sys.argv[1:]
    picture = f"data:image/png;base64,{base64.b64encode(Path(image).read_bytes()).decode()}"
    programs = (langchain, langchain_responses, pydantic_ai, instructor, litellm, llama_index)
    (program,) = (one for one in programs if one.__name__ == name)
    print(json.dumps(program(url, picture)))


if __name__ == "__main__":
    main()
