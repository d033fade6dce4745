"""llama-index: OpenAILike, its structured predict, and FunctionAgent with a tool."""

import asyncio

import columns as c
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

Person = c.person()


TOOL = FunctionTool.from_defaults(c.get_weather)
llm = OpenAILike(
    model=c.MODEL,
    api_base=c.API,
    api_key=c.KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    context_window=100_000,
    max_tokens=300,
    max_retries=0,
    timeout=300,
)


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


def text() -> None:
    c.same(llm.chat(user(c.SAY)).message.content, c.SAID)


def stream() -> None:
    pieces = [piece.delta for piece in llm.stream_chat(user(c.SAY))]
    c.same("".join(pieces), c.SAID)


def tools() -> None:
    c.calls.clear()
    agent = FunctionAgent(tools=[TOOL], llm=llm)

    async def run() -> str:
        return str(await agent.run(c.CALL))

    c.same((asyncio.run(run()), c.calls), (c.FOUND, [c.ARGUMENTS]))


def forced_tool() -> None:
    for choice in ("required", "get_weather"):
        answer = llm.chat_with_tools([TOOL], user_msg=c.CALL, tool_choice=choice)
        (call,) = llm.get_tool_calls_from_response(answer)
        c.same((call.tool_name, call.tool_kwargs), ("get_weather", c.ARGUMENTS))


def structured() -> None:
    found = llm.structured_predict(Person, PromptTemplate("{asked}"), asked=c.WRITE)
    c.same(found, Person(**c.PERSON))
    chat = llm.as_structured_llm(Person).chat(user(c.WRITE))
    c.same(chat.raw, Person(**c.PERSON))


def default() -> None:
    plain = OpenAILike(model=c.MODEL, api_base=c.API, api_key=c.KEY, max_tokens=8, max_retries=0)
    whole = plain.complete("One.").text
    c.same("".join(piece.delta for piece in plain.stream_complete("One.")), whole)


c.check(globals())
