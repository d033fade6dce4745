"""Driver of anthropic's SDK: messages, count_tokens."""

import json

import columns as c
from anthropic import Anthropic

client = Anthropic(base_url=c.URL, api_key=c.KEY, max_retries=0, timeout=300)
TOOL = {
    "name": "get_weather",
    "description": c.FUNCTION["description"],
    "input_schema": c.PARAMETERS,
}


def user(text: str) -> dict:
    return {"model": c.MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": text}]}


def said(message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def answer(text: str, **more) -> str:
    return said(client.messages.create(**user(text), **more))


def call(message):
    (found,) = [block for block in message.content if block.type == "tool_use"]
    c.same((found.name, found.input), ("get_weather", c.ARGUMENTS))
    return found


def counted() -> None:
    asked = {name: value for name, value in user(c.SAY).items() if name != "max_tokens"}
    assert client.messages.count_tokens(**asked).input_tokens > 0


def streamed() -> str:
    with client.messages.stream(**user(c.SAY)) as pieces:
        return "".join(pieces.text_stream)


def called_and_said() -> str:
    asked = {**user(c.CALL), "tools": [TOOL]}
    message = client.messages.create(**asked)
    result = {"type": "tool_result", "tool_use_id": call(message).id, "content": c.FOUND}
    asked["messages"] += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    return said(client.messages.create(**asked))


def forced() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        call(client.messages.create(**user(c.CALL), tools=[TOOL], tool_choice=choice))


def written() -> dict:
    wanted = {"format": {"type": "json_schema", "schema": c.PERSON_SCHEMA}}
    return json.loads(answer(c.WRITE, output_config=wanted))


text = c.all_of(c.says(lambda: answer(c.SAY)), counted)
c.report(
    text=text,
    stream=c.says(streamed),
    tools=c.gives(c.FOUND, called_and_said),
    forced_tool=forced,
    structured=c.gives(c.PERSON, written),
    default=text,
)
