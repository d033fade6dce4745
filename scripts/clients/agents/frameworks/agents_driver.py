"""openai-agents: by chats, and by responses, which is its default."""

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
# One for all: the client keeps its connections, which belong to a loop.
loop = asyncio.new_event_loop()


Person = c.person()


get_weather = function_tool(c.get_weather)


def agent(model=CHATS, choice=None, **more) -> Agent:
    settings = ModelSettings(max_tokens=200, tool_choice=choice)
    return Agent(name="it", model=model, model_settings=settings, **more)


def result(of: Agent, text: str):
    return loop.run_until_complete(Runner.run(of, text)).final_output


def text() -> None:
    c.same(result(agent(), c.SAY), c.SAID)


def stream() -> None:
    async def run() -> str:
        streamed = Runner.run_streamed(agent(), c.SAY)
        pieces = []
        async for event in streamed.stream_events():
            if (
                event.type == "raw_response_event"
                and event.data.type == "response.output_text.delta"
            ):
                pieces.append(event.data.delta)
        return "".join(pieces)

    c.same(loop.run_until_complete(run()), c.SAID)


def called(of: Agent) -> None:
    c.calls.clear()
    c.same(result(of, c.CALL), c.FOUND)
    c.same(c.calls, [c.ARGUMENTS])


def tools() -> None:
    called(agent(tools=[get_weather]))


def forced_tool() -> None:
    called(agent(tools=[get_weather], choice="required"))


def structured() -> None:
    c.same(result(agent(output_type=Person), c.WRITE), Person(**c.PERSON))


def default() -> None:
    c.same(result(agent(RESPONSES), c.SAY), c.SAID)
    called(agent(RESPONSES, tools=[get_weather]))
    c.same(result(agent(RESPONSES, output_type=Person), c.WRITE), Person(**c.PERSON))


c.check(globals())
