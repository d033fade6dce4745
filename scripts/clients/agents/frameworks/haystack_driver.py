"""Driver of haystack: OpenAIChatGenerator, and Agent with a tool."""

import json

import columns as c
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

TOOL = Tool(**c.FUNCTION, function=c.get_weather)
NAMED = {"type": "function", "function": {"name": "get_weather"}}


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


def streamed() -> tuple[str, str]:
    pieces: list[str] = []
    whole = answer(generator(lambda chunk: pieces.append(chunk.content)), c.SAY)
    return "".join(pieces), whole.text


def agent() -> str:
    runner = Agent(chat_generator=generator(), tools=[TOOL])
    return runner.run(messages=[ChatMessage.from_user(c.CALL)])["messages"][-1].text


def forced(choice) -> tuple[str, dict]:
    (call,) = answer(generator(tool_choice=choice), c.CALL, tools=[TOOL]).tool_calls
    return call.tool_name, call.arguments


def written() -> dict:
    schema = {"name": "Person", "schema": c.PERSON_SCHEMA, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    return json.loads(answer(generator(response_format=wanted), c.WRITE).text)


text = c.says(lambda: answer(generator(), c.SAY).text)
c.report(
    text=text,
    stream=c.gives((c.SAID, c.SAID), streamed),
    tools=c.calls_and_says(agent),
    forced_tool=c.gives(
        ("get_weather", c.ARGUMENTS), lambda: forced("required"), lambda: forced(NAMED)
    ),
    structured=c.gives(c.PERSON, written),
    default=text,
)
