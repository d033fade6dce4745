"""semantic-kernel: OpenAIChatCompletion, and an agent with a plugin."""

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

calls: list[dict] = []


class Weather:
    @kernel_function(description="The weather to come.")
    def get_weather(self, city: str, days: int) -> str:
        calls.append({"city": city, "days": days})
        return c.FOUND


Person = c.person()


def service() -> OpenAIChatCompletion:
    client = AsyncOpenAI(base_url=c.API, api_key=c.KEY, max_retries=0, timeout=300)
    return OpenAIChatCompletion(ai_model_id=c.MODEL, async_client=client)


def history(text: str) -> ChatHistory:
    said = ChatHistory()
    said.add_user_message(text)
    return said


def settings(**more) -> OpenAIChatPromptExecutionSettings:
    return OpenAIChatPromptExecutionSettings(max_tokens=300, **more)


def text() -> None:
    answer = asyncio.run(service().get_chat_message_content(history(c.SAY), settings()))
    c.same(str(answer), c.SAID)


def stream() -> None:
    async def run() -> str:
        asked = service().get_streaming_chat_message_content(history(c.SAY), settings())
        return "".join([str(piece) async for piece in asked])

    c.same(asyncio.run(run()), c.SAID)


ASKED = c.CALL.replace("get_weather", "Weather-get_weather")


def tools() -> None:
    calls.clear()
    agent = ChatCompletionAgent(service=service(), plugins=[Weather()], name="caller")
    answer = asyncio.run(agent.get_response(ASKED))
    c.same((str(answer), calls), (c.FOUND, [c.ARGUMENTS]))


def forced_tool() -> None:
    kernel = Kernel()
    kernel.add_plugin(Weather(), "Weather")
    required = FunctionChoiceBehavior.Required(auto_invoke=False)
    answer = asyncio.run(
        service().get_chat_message_content(
            history(ASKED), settings(function_choice_behavior=required), kernel=kernel
        )
    )
    (call,) = answer.items
    c.same((call.name, json.loads(call.arguments)), ("Weather-get_weather", c.ARGUMENTS))


def structured() -> None:
    asked = settings(response_format=Person)
    answer = asyncio.run(service().get_chat_message_content(history(c.WRITE), asked))
    c.same(Person.model_validate_json(str(answer)), Person(**c.PERSON))


default = text

c.check(globals())
