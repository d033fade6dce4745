"""autogen: OpenAIChatCompletionClient, and AssistantAgent with a function."""

import asyncio
import json

import columns as c
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

# One for all: the client keeps its connections, which belong to a loop.
loop = asyncio.new_event_loop()
client = OpenAIChatCompletionClient(
    model=c.MODEL,
    base_url=c.API,
    api_key=c.KEY,
    timeout=300,
    max_retries=0,
    max_tokens=300,
    model_info={
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": "unknown",
    },
)


Person = c.person()


TOOL = FunctionTool(c.get_weather, description="The weather to come.")


def user(text: str) -> list[UserMessage]:
    return [UserMessage(content=text, source="user")]


def result(text: str, **more):
    return loop.run_until_complete(client.create(user(text), **more)).content


def arguments(found) -> dict:
    (call,) = found
    c.same(call.name, "get_weather")
    return json.loads(call.arguments)


def text() -> None:
    c.same(result(c.SAY), c.SAID)


def stream() -> None:
    async def run() -> list:
        return [piece async for piece in client.create_stream(user(c.SAY))]

    *pieces, whole = loop.run_until_complete(run())
    # Thoughts are streamed too, between tags of the client's own.
    c.same("".join(pieces).split("</think>")[-1], c.SAID)
    c.same(whole.content, c.SAID)


def tools() -> None:
    c.same(arguments(result(c.CALL, tools=[TOOL])), c.ARGUMENTS)


def forced_tool() -> None:
    for choice in ("required", TOOL):
        c.same(arguments(result(c.CALL, tools=[TOOL], tool_choice=choice)), c.ARGUMENTS)


def structured() -> None:
    c.same(json.loads(result(c.WRITE, json_output=Person)), c.PERSON)
    c.same(json.loads(result(c.WRITE, json_output=True)), c.PERSON)


def default() -> None:
    c.calls.clear()
    runner = AssistantAgent(
        "it", model_client=client, tools=[c.get_weather], system_message="Do it."
    )
    found = loop.run_until_complete(runner.run(task=c.CALL, cancellation_token=CancellationToken()))
    c.same((c.calls, found.messages[-1].content), ([c.ARGUMENTS], c.FOUND))


c.check(globals())
