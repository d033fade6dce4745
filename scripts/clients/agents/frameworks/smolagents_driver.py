"""Driver of smolagents: OpenAIModel, and ToolCallingAgent with requests of `tool_choice:
required`."""

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


def called(**more) -> dict:
    message = model.generate(user(c.CALL), tools_to_call_from=[get_weather], **more)
    (call,) = message.tool_calls
    found = call.function.arguments
    return json.loads(found) if isinstance(found, str) else found


def written() -> dict:
    schema = {"name": "Person", "schema": c.PERSON_SCHEMA, "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    return json.loads(model.generate(user(c.WRITE), response_format=wanted).content)


def agent() -> str:
    runner = ToolCallingAgent(tools=[get_weather], model=model, max_steps=1, verbosity_level=0)
    return runner.run('Call final_answer with answer="Done".')


c.report(
    text=c.says(lambda: model.generate(user(c.SAY)).content),
    stream=c.says(
        lambda: "".join(delta.content or "" for delta in model.generate_stream(user(c.SAY)))
    ),
    tools=c.gives(c.ARGUMENTS, lambda: called(tool_choice="auto")),
    forced_tool=c.gives(c.ARGUMENTS, called),
    structured=c.gives(c.PERSON, written),
    default=c.gives("Done", agent),
)
