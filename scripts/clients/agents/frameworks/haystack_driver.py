"""haystack: OpenAIChatGenerator, and Agent with a tool."""

import json

import columns as c
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

calls: list[dict] = []


def get_weather(city: str, days: int) -> str:
    calls.append({"city": city, "days": days})
    return c.FOUND


TOOL = Tool(
    name="get_weather",
    description="The weather to come.",
    parameters=c.PARAMETERS,
    function=get_weather,
)


def generator(streaming=None, **more) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(
        api_key=Secret.from_token(c.KEY),
        model=c.MODEL,
        api_base_url=c.API,
        streaming_callback=streaming,
        generation_kwargs={"max_completion_tokens": 300, **more},
        timeout=300,
        max_retries=0,
    )


def answer(asked: OpenAIChatGenerator, text: str, **more) -> ChatMessage:
    (reply,) = asked.run([ChatMessage.from_user(text)], **more)["replies"]
    return reply


def text() -> None:
    c.same(answer(generator(), c.SAY).text, c.SAID)


def stream() -> None:
    pieces: list[str] = []
    whole = answer(generator(lambda chunk: pieces.append(chunk.content)), c.SAY)
    c.same(("".join(pieces), whole.text), (c.SAID, c.SAID))


def tools() -> None:
    calls.clear()
    agent = Agent(chat_generator=generator(), tools=[TOOL])
    messages = agent.run(messages=[ChatMessage.from_user(c.CALL)])["messages"]
    c.same((calls, messages[-1].text), ([c.ARGUMENTS], c.FOUND))


def forced_tool() -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        (call,) = answer(generator(tool_choice=choice), c.CALL, tools=[TOOL]).tool_calls
        c.same((call.tool_name, call.arguments), ("get_weather", c.ARGUMENTS))


def structured() -> None:
    schema = {"name": "Person", "schema": c.PERSON_SCHEMA, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    found = answer(generator(response_format=wanted), c.WRITE).text
    c.same(json.loads(found), c.PERSON)


default = text

c.check(globals())
