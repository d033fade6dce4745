"""Driver of langgraph and langchain-anthropic: Messages, and agents with a tool over Messages, chat
completions and Responses. An agent's second question continues from a checkpoint of LangGraph."""

from itertools import pairwise

import columns as c
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

get_weather = tool(c.get_weather)
Person = c.person("A person.")


def messages(**more) -> ChatAnthropic:
    asked = {"max_tokens": 300, **more}
    return ChatAnthropic(model=c.MODEL, base_url=c.URL, api_key=c.KEY, max_retries=0, **asked)


def openai(**more) -> ChatOpenAI:
    asked = {"max_tokens": 300, **more}
    return ChatOpenAI(model=c.MODEL, base_url=c.API, api_key=c.KEY, max_retries=0, **asked)


def two_questions(model) -> list[dict]:
    """Ask an agent two questions, and return the usage of each answer."""
    c.calls.clear()
    agent = create_agent(model, [get_weather], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    for asked, expected in ((c.CALL, c.FOUND), (c.SAY, c.SAID)):
        answered = agent.invoke({"messages": [HumanMessage(asked)]}, thread)["messages"]
        c.same(answered[-1].text, expected)
    c.same(c.calls, [c.ARGUMENTS])
    return [message.usage_metadata for message in answered if message.type == "ai"]


def thought() -> str:
    target = {"type": "enabled", "budget_tokens": 1024}
    return messages(max_tokens=2000, thinking=target).invoke(c.SAY).text


def agents() -> None:
    """Check the cached tokens of each turn: all tokens of the previous turn except the last one."""
    for before, after in pairwise(two_questions(messages())):
        c.same(after["input_token_details"]["cache_read"], before["total_tokens"] - 1)


def forced(choice: str) -> tuple[str, dict]:
    (call,) = messages().bind_tools([get_weather], tool_choice=choice).invoke(c.CALL).tool_calls
    return call["name"], call["args"]


def written(method: str, asked: str):
    return messages().with_structured_output(Person, method=method).invoke(asked)


def others() -> None:
    two_questions(openai())
    two_questions(openai(use_responses_api=True))


c.report(
    text=c.says(lambda: messages().invoke(c.SAY).text, thought),
    stream=c.says(lambda: "".join(piece.text for piece in messages().stream(c.SAY))),
    tools=agents,
    forced_tool=c.gives(
        ("get_weather", c.ARGUMENTS), lambda: forced("any"), lambda: forced("get_weather")
    ),
    structured=c.gives(
        Person(**c.PERSON),
        lambda: written("json_schema", c.WRITE),
        lambda: written("function_calling", c.call_of("Person")),
    ),
    default=others,
)
