"""agno: agents over chats, Messages and Responses."""

from collections.abc import Callable, Iterator

import anthropic
import columns as c
from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.models.base import Model
from agno.models.openai import OpenAIResponses
from agno.models.openai.like import OpenAILike

Person = c.person()


def models() -> Iterator[Model]:
    yield OpenAILike(id=c.MODEL, base_url=c.API, api_key=c.KEY, max_tokens=300, retries=0)
    client = anthropic.Anthropic(base_url=c.URL, api_key=c.KEY, max_retries=0)
    yield Claude(id=c.MODEL, client=client, max_tokens=300)


def responses() -> Model:
    return OpenAIResponses(id=c.MODEL, base_url=c.API, api_key=c.KEY, max_output_tokens=300)


def by_each(check: Callable[[Model], None]) -> Callable[[], None]:
    def run() -> None:
        for model in models():
            check(model)

    return run


def agent(model: Model, **more) -> Agent:
    return Agent(model=model, telemetry=False, **more)


def say(model: Model) -> None:
    c.same(agent(model).run(c.SAY).content, c.SAID)


def say_in_pieces(model: Model) -> None:
    events = agent(model).run(c.SAY, stream=True)
    pieces = [event.content or "" for event in events if event.event == "RunContent"]
    c.same("".join(pieces), c.SAID)


def call(model: Model) -> None:
    c.calls.clear()
    found = agent(model, tools=[c.get_weather]).run(c.CALL).content
    c.same((found, c.calls), (c.FOUND, [c.ARGUMENTS]))


def write(model: Model) -> None:
    c.same(agent(model, output_schema=Person).run(c.WRITE).content, Person(**c.PERSON))


text = by_each(say)
stream = by_each(say_in_pieces)
tools = by_each(call)
structured = by_each(write)


def default() -> None:
    call(responses())


c.check(globals())
