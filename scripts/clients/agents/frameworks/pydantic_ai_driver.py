"""Driver of pydantic-ai: over chat completions, over Responses, and its three ways to structured
output."""

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


def called(model) -> str:
    return result(c.CALL, model, tools=[c.get_weather])


async def pieces() -> str:
    async with Agent(CHATS, model_settings=SETTINGS).run_stream(c.SAY) as streamed:
        return "".join([piece async for piece in streamed.stream_text(delta=True)])


def writes(*runs):
    return c.gives(Person(**c.PERSON), *runs)


# By default it requests output through a final tool: `tool_choice: required`.
CALL = c.call_of("final_result")
c.report(
    text=c.says(lambda: result(c.SAY)),
    stream=c.says(lambda: asyncio.run(pieces())),
    tools=c.calls_and_says(lambda: called(CHATS)),
    forced_tool=writes(
        lambda: result(CALL, output_type=Person),
        lambda: result(CALL, output_type=ToolOutput(Person)),
    ),
    structured=writes(
        lambda: result(c.WRITE, output_type=NativeOutput(Person)),
        lambda: result(c.WRITE, output_type=PromptedOutput(Person)),
    ),
    default=c.all_of(
        c.says(lambda: result(c.SAY, RESPONSES)),
        c.calls_and_says(lambda: called(RESPONSES)),
        writes(lambda: result(c.WRITE, RESPONSES, output_type=NativeOutput(Person))),
    ),
)
