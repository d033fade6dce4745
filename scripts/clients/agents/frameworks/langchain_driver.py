"""Driver of langchain-openai: ChatOpenAI, OpenAI."""

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
responses = ChatOpenAI(**SETTINGS, use_responses_api=True)
Person = c.person("A person.")
WAYS = {"json_schema": c.WRITE, "function_calling": c.call_of("Person"), "json_mode": c.WRITE}


def completed() -> None:
    many = OpenAI(**{**SETTINGS, "max_tokens": 4}).generate(["One.", "Two."])
    c.same(len(many.generations), 2)


def call(model):
    message = model.invoke(c.CALL)
    (found,) = message.tool_calls
    c.same((found["name"], found["args"]), ("get_weather", c.ARGUMENTS))
    return message


def called_and_said() -> str:
    bound = chat.bind_tools([c.TOOL])
    message = call(bound)
    result = ToolMessage(c.FOUND, tool_call_id=message.tool_calls[0]["id"])
    return bound.invoke([HumanMessage(c.CALL), message, result]).content


def forced() -> None:
    for choice in ("any", "get_weather"):
        call(chat.bind_tools([c.TOOL], tool_choice=choice))


def written() -> list:
    return [
        chat.with_structured_output(Person, method=method).invoke(text)
        for method, text in WAYS.items()
    ]


c.report(
    text=c.all_of(c.says(lambda: chat.invoke(c.SAY).content), completed),
    stream=c.says(lambda: "".join(str(chunk.content) for chunk in chat.stream(c.SAY))),
    tools=c.gives(c.FOUND, called_and_said),
    forced_tool=forced,
    structured=c.gives([Person(**c.PERSON)] * len(WAYS), written),
    default=c.all_of(
        c.says(lambda: responses.invoke(c.SAY).text),
        lambda: call(responses.bind_tools([c.TOOL])),
        c.gives(
            Person(**c.PERSON),
            lambda: responses.with_structured_output(Person).invoke(c.WRITE),
        ),
    ),
)
