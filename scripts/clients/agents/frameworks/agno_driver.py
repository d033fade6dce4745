"""Driver of agno: agents over chat completions, Messages and Responses."""

import anthropic
import columns as c
from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.models.base import Model
from agno.models.openai import OpenAIResponses
from agno.models.openai.like import OpenAILike

Person = c.person()
OURS = {"id": c.MODEL, "base_url": c.API, "api_key": c.KEY}


def chats() -> Model:
    return OpenAILike(**OURS, max_tokens=300, retries=0)


def messages() -> Model:
    client = anthropic.Anthropic(base_url=c.URL, api_key=c.KEY, max_retries=0)
    return Claude(id=c.MODEL, client=client, max_tokens=300)


def responses() -> Model:
    return OpenAIResponses(**OURS, max_output_tokens=300)


def said(model, text: str = c.SAY, **more):
    return Agent(model=model(), telemetry=False, **more).run(text).content


def pieces(model) -> str:
    events = Agent(model=model(), telemetry=False).run(c.SAY, stream=True)
    return "".join(event.content or "" for event in events if event.event == "RunContent")


def called(model) -> str:
    return said(model, c.CALL, tools=[c.get_weather])


def written(model):
    return said(model, c.WRITE, output_schema=Person)


c.report(
    text=c.says(lambda: said(chats), lambda: said(messages)),
    stream=c.says(lambda: pieces(chats), lambda: pieces(messages)),
    tools=c.calls_and_says(lambda: called(chats), lambda: called(messages)),
    structured=c.gives(Person(**c.PERSON), lambda: written(chats), lambda: written(messages)),
    default=c.calls_and_says(lambda: called(responses)),
)
