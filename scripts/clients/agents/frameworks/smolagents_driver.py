"""smolagents: OpenAIModel, and ToolCallingAgent, which asks with `tool_choice: required`."""

import json

import columns as c
from smolagents import ChatMessage, MessageRole, OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(
    model_id=c.MODEL,
    api_base=c.API,
    api_key=c.KEY,
    client_kwargs={"max_retries": 0, "timeout": 300},
    max_tokens=300,
)


@tool
def get_weather(city: str, days: int) -> str:
    """The weather to come.

    Args:
        city: where
        days: how many
    """
    return c.FOUND


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])]


def called(**more) -> None:
    message = model.generate(user(c.CALL), tools_to_call_from=[get_weather], **more)
    (call,) = message.tool_calls
    found = call.function.arguments
    c.same(json.loads(found) if isinstance(found, str) else found, c.ARGUMENTS)


def text() -> None:
    c.same(model.generate(user(c.SAY)).content, c.SAID)


def stream() -> None:
    pieces = [delta.content or "" for delta in model.generate_stream(user(c.SAY))]
    c.same("".join(pieces), c.SAID)


def structured() -> None:
    schema = {"name": "Person", "schema": c.PERSON_SCHEMA, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    c.same(json.loads(model.generate(user(c.WRITE), response_format=wanted).content), c.PERSON)


def default() -> None:
    runner = ToolCallingAgent(tools=[get_weather], model=model, max_steps=1, verbosity_level=0)
    c.same(runner.run('Call final_answer with answer="Done".'), "Done")


def tools() -> None:
    called(tool_choice="auto")


forced_tool = called

c.check(globals())
