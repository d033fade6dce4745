"""langchain-openai: ChatOpenAI, OpenAI."""

import columns as c
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

SETTINGS = {
    "model": c.MODEL,
    "base_url": c.API,
    "api_key": c.KEY,
    "max_retries": 0,
    "timeout": 300,
    "max_tokens": 200,
}
chat = ChatOpenAI(**SETTINGS)


Person = c.person("A person.")


def called(message) -> dict:
    (call,) = message.tool_calls
    c.same((call["name"], call["args"]), ("get_weather", c.ARGUMENTS))
    return call


def text() -> None:
    c.same(chat.invoke(c.SAY).content, c.SAID)
    many = OpenAI(**{**SETTINGS, "max_tokens": 4}).generate(["One.", "Two."])
    c.same(len(many.generations), 2)


def stream() -> None:
    c.same("".join(str(chunk.content) for chunk in chat.stream(c.SAY)), c.SAID)


def tools() -> None:
    bound = chat.bind_tools([c.TOOL])
    message = bound.invoke(c.CALL)
    call = called(message)
    history = [HumanMessage(c.CALL), message, ToolMessage(c.FOUND, tool_call_id=call["id"])]
    c.same(bound.invoke(history).content, c.FOUND)


def forced_tool() -> None:
    called(chat.bind_tools([c.TOOL], tool_choice="any").invoke(c.CALL))
    called(chat.bind_tools([c.TOOL], tool_choice="get_weather").invoke(c.CALL))


def structured() -> None:
    asked = {
        "json_schema": c.WRITE,
        "function_calling": c.call_of("Person"),
        "json_mode": c.WRITE,
    }
    for method, text in asked.items():
        found = chat.with_structured_output(Person, method=method).invoke(text)
        c.same(found, Person(**c.PERSON))


def default() -> None:
    responses = ChatOpenAI(**SETTINGS, use_responses_api=True)
    c.same(responses.invoke(c.SAY).text, c.SAID)
    called(responses.bind_tools([c.TOOL]).invoke(c.CALL))
    c.same(responses.with_structured_output(Person).invoke(c.WRITE), Person(**c.PERSON))


c.check(globals())
