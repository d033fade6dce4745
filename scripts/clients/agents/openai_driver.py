"""openai: chats, completions, responses, parse."""

import json

import columns as c
from openai import OpenAI

client = OpenAI(base_url=c.API, api_key=c.KEY, max_retries=0, timeout=300)


Person = c.person()


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def text() -> None:
    answer = client.chat.completions.create(model=c.MODEL, messages=user(c.SAY), max_tokens=100)
    c.same(answer.choices[0].message.content, c.SAID)
    finished = client.completions.create(model=c.MODEL, prompt=["One.", "Two."], max_tokens=4)
    c.same(len(finished.choices), 2)


def stream() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [
        *client.chat.completions.create(
            model=c.MODEL, messages=user(c.SAY), max_tokens=100, **options
        )
    ]
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    c.same("".join(pieces), c.SAID)
    assert chunks[-1].usage.completion_tokens > 0


def arguments(message) -> dict:
    (call,) = message.tool_calls
    c.same(call.function.name, "get_weather")
    return json.loads(call.function.arguments)


def tools() -> None:
    messages = user(c.CALL)
    asked = {"model": c.MODEL, "tools": [c.TOOL], "max_tokens": 200}
    message = client.chat.completions.create(messages=messages, **asked).choices[0].message
    c.same(arguments(message), c.ARGUMENTS)
    with client.chat.completions.stream(messages=messages, **asked) as streamed:
        final = streamed.get_final_completion().choices[0].message
    c.same(arguments(final), c.ARGUMENTS)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": c.FOUND}
    messages += [message, result]
    answer = client.chat.completions.create(messages=messages, **asked)
    c.same(answer.choices[0].message.content, c.FOUND)


def forced_tool() -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        answer = client.chat.completions.create(
            model=c.MODEL,
            messages=user(c.CALL),
            tools=[c.TOOL],
            tool_choice=choice,
            max_tokens=200,
        )
        c.same(arguments(answer.choices[0].message), c.ARGUMENTS)


def structured() -> None:
    answer = client.chat.completions.parse(
        model=c.MODEL, messages=user(c.WRITE), response_format=Person, max_tokens=200
    )
    c.same(answer.choices[0].message.parsed, Person(**c.PERSON))
    whole = client.chat.completions.create(
        model=c.MODEL,
        messages=user(c.WRITE),
        response_format={"type": "json_object"},
        max_tokens=200,
    )
    c.same(json.loads(whole.choices[0].message.content), c.PERSON)


def default() -> None:
    answer = client.responses.create(model=c.MODEL, input=c.SAY, max_output_tokens=100)
    c.same(answer.output_text, c.SAID)
    tool = {"type": "function", **c.FUNCTION, "strict": True}
    called = client.responses.create(
        model=c.MODEL, input=c.CALL, tools=[tool], max_output_tokens=200
    )
    (call,) = [item for item in called.output if item.type == "function_call"]
    c.same(json.loads(call.arguments), c.ARGUMENTS)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": c.FOUND}
    answered = client.responses.create(
        model=c.MODEL,
        input=[result],
        tools=[tool],
        previous_response_id=called.id,
        max_output_tokens=100,
    )
    c.same(answered.output_text, c.FOUND)
    parsed = client.responses.parse(
        model=c.MODEL, input=c.WRITE, text_format=Person, max_output_tokens=200
    )
    c.same(parsed.output_parsed, Person(**c.PERSON))


c.check(globals())
