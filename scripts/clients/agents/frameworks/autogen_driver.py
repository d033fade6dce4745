"""Driver of autogen: OpenAIChatCompletionClient, and AssistantAgent with a function."""

import asyncio
import json

import columns as c
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

# One loop for all: the client keeps its connections, and they belong to a loop.
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


async def pieces() -> str:
    *found, whole = [piece async for piece in client.create_stream(user(c.SAY))]
    c.same(whole.content, c.SAID)
    # Thoughts are streamed too, between the client's own tags.
    return "".join(found).split("</think>")[-1]


def forced(choice) -> dict:
    return arguments(result(c.CALL, tools=[TOOL], tool_choice=choice))


def agent() -> str:
    runner = AssistantAgent(
        "it", model_client=client, tools=[c.get_weather], system_message="Do it."
    )
    found = loop.run_until_complete(runner.run(task=c.CALL, cancellation_token=CancellationToken()))
    return found.messages[-1].content


c.report(
    text=c.says(lambda: result(c.SAY)),
    stream=c.says(lambda: loop.run_until_complete(pieces())),
    tools=c.gives(c.ARGUMENTS, lambda: arguments(result(c.CALL, tools=[TOOL]))),
    forced_tool=c.gives(c.ARGUMENTS, lambda: forced("required"), lambda: forced(TOOL)),
    structured=c.gives(
        c.PERSON,
        lambda: json.loads(result(c.WRITE, json_output=Person)),
        lambda: json.loads(result(c.WRITE, json_output=True)),
    ),
    default=c.calls_and_says(agent),
)
