"""Driver of inspect-ai: its provider for servers with OpenAI's API."""

import asyncio
import json

import columns as c
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import match
from inspect_ai.tool import ToolFunction, ToolInfo, ToolParams
from inspect_ai.util import JSONSchema

model = get_model(
    f"openai-api/local/{c.MODEL}",
    base_url=c.API,
    api_key=c.KEY,
    config=GenerateConfig(max_tokens=300, max_retries=0),
)
# One loop for all: the client keeps its connections, and they belong to a loop.
loop = asyncio.new_event_loop()
TOOL = ToolInfo(
    name="get_weather",
    description="The weather to come.",
    parameters=ToolParams(
        properties={"city": JSONSchema(type="string"), "days": JSONSchema(type="integer")},
        required=["city", "days"],
    ),
)


def answer(*arguments, **more):
    return loop.run_until_complete(model.generate(*arguments, **more)).message


def called(**more):
    message = answer(c.CALL, tools=[TOOL], **more)
    (call,) = message.tool_calls
    c.same((call.function, call.arguments), ("get_weather", c.ARGUMENTS))
    return message, call


def called_and_said() -> str:
    message, call = called()
    result = ChatMessageTool(content=c.FOUND, tool_call_id=call.id, function=call.function)
    return answer([ChatMessageUser(content=c.CALL), message, result], tools=[TOOL]).text


def forced() -> None:
    called(tool_choice="any")
    called(tool_choice=ToolFunction("get_weather"))


def written() -> dict:
    schema = ResponseSchema(name="person", json_schema=JSONSchema(**c.PERSON_SCHEMA))
    return json.loads(answer(c.WRITE, config=GenerateConfig(response_schema=schema)).text)


def evaluated() -> tuple[str, float]:
    task = Task(dataset=[Sample(input=c.SAY, target=c.SAID)], scorer=match(location="exact"))
    (log,) = eval(task, model=model, display="none", log_dir="logs")
    return log.status, log.results.scores[0].metrics["accuracy"].value


c.report(
    text=c.says(lambda: answer(c.SAY).text),
    tools=c.gives(c.FOUND, called_and_said),
    forced_tool=forced,
    structured=c.gives(c.PERSON, written),
    default=c.gives(("success", 1.0), evaluated),
)
