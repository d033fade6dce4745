"""Driver of semantic-kernel: OpenAIChatCompletion, and an agent with a plugin."""

import asyncio
import json

import columns as c
from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function


class Weather:
    @kernel_function(description="The weather to come.")
    def get_weather(self, city: str, days: int) -> str:
        return c.get_weather(city, days)


ASKED = c.CALL.replace("get_weather", "Weather-get_weather")
Person = c.person()


def service() -> OpenAIChatCompletion:
    client = AsyncOpenAI(base_url=c.API, api_key=c.KEY, max_retries=0, timeout=300)
    return OpenAIChatCompletion(ai_model_id=c.MODEL, async_client=client)


def asked(text: str, **more) -> tuple[ChatHistory, OpenAIChatPromptExecutionSettings]:
    said = ChatHistory()
    said.add_user_message(text)
    return said, OpenAIChatPromptExecutionSettings(max_tokens=300, **more)


def answer(text: str, kernel: Kernel | None = None, **more):
    given = {} if kernel is None else {"kernel": kernel}
    return asyncio.run(service().get_chat_message_content(*asked(text, **more), **given))


async def pieces() -> str:
    found = service().get_streaming_chat_message_content(*asked(c.SAY))
    return "".join([str(piece) async for piece in found])


def agent() -> str:
    runner = ChatCompletionAgent(service=service(), plugins=[Weather()], name="caller")
    return str(asyncio.run(runner.get_response(ASKED)))


def forced() -> tuple[str, dict]:
    kernel = Kernel()
    kernel.add_plugin(Weather(), "Weather")
    required = FunctionChoiceBehavior.Required(auto_invoke=False)
    (call,) = answer(ASKED, kernel, function_choice_behavior=required).items
    return call.name, json.loads(call.arguments)


text = c.says(lambda: str(answer(c.SAY)))
c.report(
    text=text,
    stream=c.says(lambda: asyncio.run(pieces())),
    tools=c.calls_and_says(agent),
    forced_tool=c.gives(("Weather-get_weather", c.ARGUMENTS), forced),
    structured=c.gives(c.PERSON, lambda: json.loads(str(answer(c.WRITE, response_format=Person)))),
    default=text,
)
