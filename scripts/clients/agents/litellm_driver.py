"""litellm's SDK: chats by its provider for vLLM, responses and messages by its bridges."""

import asyncio
import json

import columns as c
import litellm

HOSTED = {"model": f"hosted_vllm/{c.MODEL}", "api_base": c.API, "api_key": c.KEY, "timeout": 300}
OPENAI = {**HOSTED, "model": f"openai/{c.MODEL}"}


Person = c.person()


def asked(text: str) -> dict:
    return {**HOSTED, "messages": [{"role": "user", "content": text}], "max_tokens": 200}


def called(answer) -> None:
    (call,) = answer.choices[0].message.tool_calls
    c.same(json.loads(call.function.arguments), c.ARGUMENTS)


def text() -> None:
    c.same(litellm.completion(**asked(c.SAY)).choices[0].message.content, c.SAID)


def stream() -> None:
    chunks = litellm.completion(**asked(c.SAY), stream=True)
    c.same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), c.SAID)


def tools() -> None:
    called(litellm.completion(**asked(c.CALL), tools=[c.TOOL]))


def forced_tool() -> None:
    called(litellm.completion(**asked(c.CALL), tools=[c.TOOL], tool_choice="required"))


def structured() -> None:
    answer = litellm.completion(**asked(c.WRITE), response_format=Person)
    c.same(json.loads(answer.choices[0].message.content), c.PERSON)


def default() -> None:
    finished = litellm.text_completion(**{**OPENAI, "prompt": "One.", "max_tokens": 4})
    assert finished.choices
    response = litellm.responses(**OPENAI, input=c.SAY, max_output_tokens=100)
    parts = [
        part.text for item in response.output if item.type == "message" for part in item.content
    ]
    c.same("".join(parts), c.SAID)
    message = asyncio.run(litellm.anthropic.messages.acreate(**asked(c.SAY)))
    parts = [part["text"] for part in message["content"] if part["type"] == "text"]
    c.same("".join(parts), c.SAID)


c.check(globals())
