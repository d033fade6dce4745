"""Driver of openai-agents: over chat completions, and over the Responses API, its default."""

import asyncio

import columns as c
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=c.API, api_key=c.KEY, max_retries=0, timeout=300)
CHATS = OpenAIChatCompletionsModel(model=c.MODEL, openai_client=client)
RESPONSES = OpenAIResponsesModel(model=c.MODEL, openai_client=client)
# One loop for all: the client keeps its connections, and they belong to a loop.
loop = asyncio.new_event_loop()
Person = c.person()
TOOLS = [function_tool(c.get_weather)]


def agent(model=CHATS, choice=None, **more) -> Agent:
    settings = ModelSettings(max_tokens=200, tool_choice=choice)
    return Agent(name="it", model=model, model_settings=settings, **more)


def result(text: str, **more):
    return loop.run_until_complete(Runner.run(agent(**more), text)).final_output


async def pieces() -> str:
    found = []
    async for event in Runner.run_streamed(agent(), c.SAY).stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            found.append(event.data.delta)
    return "".join(found)


c.report(
    text=c.says(lambda: result(c.SAY)),
    stream=c.says(lambda: loop.run_until_complete(pieces())),
    tools=c.calls_and_says(lambda: result(c.CALL, tools=TOOLS)),
    forced_tool=c.calls_and_says(lambda: result(c.CALL, tools=TOOLS, choice="required")),
    structured=c.gives(Person(**c.PERSON), lambda: result(c.WRITE, output_type=Person)),
    default=c.all_of(
        c.says(lambda: result(c.SAY, model=RESPONSES)),
        c.calls_and_says(lambda: result(c.CALL, model=RESPONSES, tools=TOOLS)),
        c.gives(Person(**c.PERSON), lambda: result(c.WRITE, model=RESPONSES, output_type=Person)),
    ),
)
