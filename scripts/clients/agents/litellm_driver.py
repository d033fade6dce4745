"""Driver of litellm's SDK: chat completions by its provider for vLLM, Responses and Messages by its
bridges."""

import asyncio
import json

import columns as c
import litellm

HOSTED = {"model": f"hosted_vllm/{c.MODEL}", "api_base": c.API, "api_key": c.KEY, "timeout": 300}
OPENAI = {**HOSTED, "model": f"openai/{c.MODEL}"}


def asked(text: str) -> dict:
    return {**HOSTED, "messages": [{"role": "user", "content": text}], "max_tokens": 200}


def answer(text: str, **more):
    return litellm.completion(**asked(text), **more).choices[0].message


def pieces() -> str:
    chunks = litellm.completion(**asked(c.SAY), stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def called(**more) -> dict:
    (call,) = answer(c.CALL, tools=[c.TOOL], **more).tool_calls
    return json.loads(call.function.arguments)


def finishes() -> None:
    assert litellm.text_completion(**OPENAI, prompt="One.", max_tokens=4).choices


def response() -> str:
    found = litellm.responses(**OPENAI, input=c.SAY, max_output_tokens=100)
    messages = [item for item in found.output if item.type == "message"]
    return "".join(part.text for item in messages for part in item.content)


def message() -> str:
    found = asyncio.run(litellm.anthropic.messages.acreate(**asked(c.SAY)))
    return "".join(part["text"] for part in found["content"] if part["type"] == "text")


c.report(
    text=c.says(lambda: answer(c.SAY).content),
    stream=c.says(pieces),
    tools=c.gives(c.ARGUMENTS, called),
    forced_tool=c.gives(c.ARGUMENTS, lambda: called(tool_choice="required")),
    structured=c.gives(
        c.PERSON, lambda: json.loads(answer(c.WRITE, response_format=c.person()).content)
    ),
    default=c.all_of(finishes, c.says(response, message)),
)
