"""anthropic: messages, count_tokens."""

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


def call(message):
    (found,) = [block for block in message.content if block.type == "tool_use"]
    c.same((found.name, found.input), ("get_weather", c.ARGUMENTS))
    return found


def text() -> None:
    c.same(said(client.messages.create(**user(c.SAY))), c.SAID)
    counted = client.messages.count_tokens(
        model=c.MODEL, messages=[{"role": "user", "content": c.SAY}]
    )
    assert counted.input_tokens > 0


def stream() -> None:
    with client.messages.stream(**user(c.SAY)) as streamed:
        c.same("".join(streamed.text_stream), c.SAID)


def tools() -> None:
    asked = {**user(c.CALL), "tools": [TOOL]}
    message = client.messages.create(**asked)
    found = call(message)
    result = {"type": "tool_result", "tool_use_id": found.id, "content": c.FOUND}
    asked["messages"] += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    c.same(said(client.messages.create(**asked)), c.FOUND)


def forced_tool() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        call(client.messages.create(**user(c.CALL), tools=[TOOL], tool_choice=choice))


def structured() -> None:
    wanted = {"format": {"type": "json_schema", "schema": c.PERSON_SCHEMA}}
    message = client.messages.create(**user(c.WRITE), output_config=wanted)
    c.same(json.loads(said(message)), c.PERSON)


default = text

c.check(globals())
