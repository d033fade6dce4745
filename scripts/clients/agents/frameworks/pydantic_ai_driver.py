"""pydantic-ai: by chats, by responses, and its three ways to structured output."""

import asyncio

import columns as c
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=c.API, api_key=c.KEY)
CHATS = OpenAIChatModel(c.MODEL, provider=provider)
RESPONSES = OpenAIResponsesModel(c.MODEL, provider=provider)
SETTINGS = {"max_tokens": 300, "timeout": 300}


Person = c.person()


def result(text: str, model=CHATS, **more):
    return Agent(model, model_settings=SETTINGS, **more).run_sync(text).output


def text() -> None:
    c.same(result(c.SAY), c.SAID)


def stream() -> None:
    async def run() -> str:
        async with Agent(CHATS, model_settings=SETTINGS).run_stream(c.SAY) as streamed:
            return "".join([piece async for piece in streamed.stream_text(delta=True)])

    c.same(asyncio.run(run()), c.SAID)


def called(model) -> None:
    c.calls.clear()
    c.same(result(c.CALL, model, tools=[c.get_weather]), c.FOUND)
    c.same(c.calls, [c.ARGUMENTS])


def tools() -> None:
    called(CHATS)


def forced_tool() -> None:
    """A final tool is how it asks for output by default: `tool_choice: required`."""
    asked = c.call_of("final_result")
    c.same(result(asked, output_type=Person), Person(**c.PERSON))
    c.same(result(asked, output_type=ToolOutput(Person)), Person(**c.PERSON))


def structured() -> None:
    c.same(result(c.WRITE, output_type=NativeOutput(Person)), Person(**c.PERSON))
    c.same(result(c.WRITE, output_type=PromptedOutput(Person)), Person(**c.PERSON))


def default() -> None:
    c.same(result(c.SAY, RESPONSES), c.SAID)
    called(RESPONSES)
    c.same(result(c.WRITE, RESPONSES, output_type=NativeOutput(Person)), Person(**c.PERSON))


c.check(globals())
