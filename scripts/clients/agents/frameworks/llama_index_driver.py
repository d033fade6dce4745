"""Driver of llama-index: OpenAILike, its structured predict, and FunctionAgent with a tool."""

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


async def agent() -> str:
    return str(await FunctionAgent(tools=[TOOL], llm=llm).run(c.CALL))


def forced(choice: str) -> tuple[str, dict]:
    answer = llm.chat_with_tools([TOOL], user_msg=c.CALL, tool_choice=choice)
    (call,) = llm.get_tool_calls_from_response(answer)
    return call.tool_name, call.tool_kwargs


def completed() -> None:
    plain = OpenAILike(model=c.MODEL, api_base=c.API, api_key=c.KEY, max_tokens=8, max_retries=0)
    whole = plain.complete("One.").text
    c.same("".join(piece.delta for piece in plain.stream_complete("One.")), whole)


c.report(
    text=c.says(lambda: llm.chat(user(c.SAY)).message.content),
    stream=c.says(lambda: "".join(piece.delta for piece in llm.stream_chat(user(c.SAY)))),
    tools=c.calls_and_says(lambda: asyncio.run(agent())),
    forced_tool=c.gives(
        ("get_weather", c.ARGUMENTS), lambda: forced("required"), lambda: forced("get_weather")
    ),
    structured=c.gives(
        Person(**c.PERSON),
        lambda: llm.structured_predict(Person, PromptTemplate("{asked}"), asked=c.WRITE),
        lambda: llm.as_structured_llm(Person).chat(user(c.WRITE)).raw,
    ),
    default=completed,
)
