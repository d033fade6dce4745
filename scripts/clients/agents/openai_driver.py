"""Driver of openai's SDK: chat completions, completions, responses, parse."""

import json

import columns as c
from openai import OpenAI

client = OpenAI(base_url=c.API, api_key=c.KEY, max_retries=0, timeout=300)
chats = client.chat.completions
Person = c.person()


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def asked(text: str, **more) -> dict:
    return {"model": c.MODEL, "messages": user(text), "max_tokens": 200, **more}


def message(text: str, **more):
    return chats.create(**asked(text, **more)).choices[0].message


def completed() -> None:
    finished = client.completions.create(model=c.MODEL, prompt=["One.", "Two."], max_tokens=4)
    c.same(len(finished.choices), 2)


def streamed() -> str:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [*chats.create(**asked(c.SAY, **options))]
    assert chunks[-1].usage.completion_tokens > 0
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def arguments(message) -> dict:
    (call,) = message.tool_calls
    c.same(call.function.name, "get_weather")
    return json.loads(call.function.arguments)


def streamed_call() -> dict:
    with chats.stream(**asked(c.CALL, tools=[c.TOOL])) as pieces:
        return arguments(pieces.get_final_completion().choices[0].message)


def called_and_said() -> str:
    call = message(c.CALL, tools=[c.TOOL])
    c.same(arguments(call), c.ARGUMENTS)
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": c.FOUND}
    return message(c.CALL, tools=[c.TOOL], messages=[*user(c.CALL), call, result]).content


def forced(choice) -> dict:
    return arguments(message(c.CALL, tools=[c.TOOL], tool_choice=choice))


def parsed() -> dict:
    answer = chats.parse(**asked(c.WRITE), response_format=Person)
    return answer.choices[0].message.parsed.model_dump()


def written() -> dict:
    return json.loads(message(c.WRITE, response_format={"type": "json_object"}).content)


def responses() -> None:
    answer = client.responses.create(model=c.MODEL, input=c.SAY, max_output_tokens=100)
    c.same(answer.output_text, c.SAID)
    more = {"model": c.MODEL, "tools": [{"type": "function", **c.FUNCTION, "strict": True}]}
    called = client.responses.create(**more, input=c.CALL, max_output_tokens=200)
    (call,) = [item for item in called.output if item.type == "function_call"]
    c.same(json.loads(call.arguments), c.ARGUMENTS)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": c.FOUND}
    answered = client.responses.create(
        **more, input=[result], previous_response_id=called.id, max_output_tokens=100
    )
    c.same(answered.output_text, c.FOUND)
    parsed = client.responses.parse(
        model=c.MODEL, input=c.WRITE, text_format=Person, max_output_tokens=200
    )
    c.same(parsed.output_parsed, Person(**c.PERSON))


named = {"type": "function", "function": {"name": "get_weather"}}
c.report(
    text=c.all_of(c.says(lambda: message(c.SAY).content), completed),
    stream=c.says(streamed),
    tools=c.all_of(c.gives(c.FOUND, called_and_said), c.gives(c.ARGUMENTS, streamed_call)),
    forced_tool=c.gives(c.ARGUMENTS, lambda: forced("required"), lambda: forced(named)),
    structured=c.gives(c.PERSON, parsed, written),
    default=responses,
)
