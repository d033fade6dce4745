"""Tests of calls allowed in an answer when the model chooses: `strict`, allowed tools, and grammars
of custom tools, in each API's form. The grammar given to the engine allows no other call."""

import json
from typing import Any

import pytest

from tasuki.model.grammar.grammar import Grammar
from tests.harness.agent_front import AgentFront
from tests.harness.byte_grammars import follows
from tests.harness.byte_grammars import tagged_call as call
from tests.harness.http_calls import Reply

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
}
USER = [{"role": "user", "content": "it was"}]
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER},
    MESSAGES: {"messages": USER, "max_tokens": 50},
    RESPONSES: {"input": "it was"},
}


def tool(path: str, name: str, **fields: Any) -> dict[str, Any]:
    """Return a tool in the API's form."""
    if path == CHAT:
        return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **fields}}
    if path == MESSAGES:
        return {"name": name, "input_schema": SCHEMA, **fields}
    return {"type": "function", "name": name, "parameters": SCHEMA, **fields}


def ask(front: AgentFront, path: str, **fields: Any) -> Reply:
    return front.http.post(path, {**ASKED[path], **fields})


def asked_grammar(front: AgentFront, path: str, **fields: Any) -> Grammar | None:
    """Return the grammar given to the engine."""
    reply = ask(front, path, **fields)
    assert reply.status == 200, reply
    return front.submits()[-1].sampling.grammar


@pytest.mark.parametrize("path", ASKED)
def test_a_strict_tool_s_calls_follow_its_schema(front: AgentFront, path: str) -> None:
    plain = asked_grammar(front, path, tools=[tool(path, "weather")])
    shown = front.prompt
    assert plain is None
    strict = tool(path, "weather", strict=True)
    grammar = asked_grammar(front, path, tools=[strict, tool(path, "look")])
    # Messages without a request for thinking have none.
    assert grammar is not None and (grammar.closing is None) == (path == MESSAGES)
    assert follows(grammar, "It rains.") and follows(grammar, f"So:\n{call('weather', days='3')}")
    assert follows(grammar, call("look", days="30")) and not follows(
        grammar, call("weather", days="30")
    )
    if path != CHAT:  # chat definitions go to the template unchanged
        asked_grammar(front, path, tools=[strict])
        assert front.prompt == shown


def allowed(path: str, mode: str, *names: str) -> dict[str, Any]:
    if path == CHAT:
        listed = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_of_the_tools_that_are_shown_some_may_be_called(front: AgentFront, path: str) -> None:
    tools = [tool(path, name) for name in ("weather", "look", "rm")]
    asked_grammar(front, path, tools=tools)
    shown = front.prompt
    choice = allowed(path, "auto", "weather", "look")
    grammar = asked_grammar(front, path, tools=tools, tool_choice=choice)
    assert front.prompt == shown and "rm" in shown
    assert follows(grammar, "fine") and follows(grammar, call("look", days="3"))
    assert not follows(grammar, call("rm", days="3"))
    must = asked_grammar(front, path, tools=tools, tool_choice=allowed(path, "required", "look"))
    assert follows(must, call("look", days="3")) and follows(
        must, "\n".join([call("look", days="3")] * 2)
    )
    assert not any(
        follows(must, text) for text in ("fine", call("weather", days="3"), call("look", days="30"))
    )


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("change", [{"mode": "any"}, {"tools": []}, {"tools": [{"type": "mcp"}]}])
def test_a_wrong_choice_among_tools_is_named(
    front: AgentFront, path: str, change: dict[str, Any]
) -> None:
    choice = allowed(path, "auto", "weather")
    (choice["allowed_tools"] if path == CHAT else choice).update(change)
    reply = ask(front, path, tools=[tool(path, "weather")], tool_choice=choice)
    assert reply.status == 400 and reply.error["param"].startswith("tool_choice.")
    other = allowed(path, "auto", "weather", "fly")
    reply = ask(front, path, tools=[tool(path, "weather")], tool_choice=other)
    assert reply.status == 400 and "'fly'" in reply.error["message"]


def test_a_custom_tool_s_text_follows_its_grammar(front: AgentFront) -> None:
    for syntax, definition in (("lark", 'start: "+" /[0-9]+/'), ("regex", r"\+[0-9]+")):
        form = {"type": "grammar", "syntax": syntax, "definition": definition}
        custom = {"type": "custom", "name": "note", "format": form}
        grammar = asked_grammar(front, RESPONSES, tools=[custom])
        assert json.dumps(definition)[1:-1] in front.prompt
        assert follows(grammar, f"So: {call('note', input='+12')}") and not follows(
            grammar, call("note", input="12")
        )


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ({"type": "grammar", "syntax": "gbnf", "definition": "a"}, "tools[0].format.syntax"),
        ({"type": "grammar", "syntax": ["lark"], "definition": "a"}, "tools[0].format.syntax"),
        ({"type": "grammar", "syntax": "lark"}, "tools[0].format.definition"),
        (
            {"type": "grammar", "syntax": "lark", "definition": "start: b"},
            "tools[0].format.definition",
        ),
        (
            {"type": "grammar", "syntax": "regex", "definition": "(?=a)b"},
            "tools[0].format.definition",
        ),
    ],
    ids=str,
)
def test_a_custom_tool_s_wrong_grammar_is_named(
    front: AgentFront, form: dict[str, Any], place: str
) -> None:
    reply = ask(front, RESPONSES, tools=[{"type": "custom", "name": "note", "format": form}])
    assert (reply.status, reply.error["param"]) == (400, place), reply


@pytest.mark.parametrize("path", ASKED)
def test_a_strict_schema_that_cannot_be_followed_is_named(front: AgentFront, path: str) -> None:
    schema = {"type": "object", "properties": {"days": {"not": {}}}, "required": ["days"]}
    field = "input_schema" if path == MESSAGES else "parameters"
    reply = ask(front, path, tools=[tool(path, "weather", **{field: schema}, strict=True)])
    assert reply.status == 400 and "not" in reply.json["error"]["message"], reply
    reply = ask(front, path, tools=[tool(path, "weather", strict="yes")])
    assert reply.status == 400 and "strict" in reply.json["error"]["message"], reply


NAMED = {CHAT: "tools[1].function.name", MESSAGES: "tools[1].name", RESPONSES: "tools[1].name"}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_two_tools_of_one_name_are_refused(front: AgentFront, path: str, choice: str) -> None:
    """The model's call would name two schemas, and one of them would be dropped silently."""
    chosen = {"type": choice} if path == MESSAGES else choice
    twice = [tool(path, "weather"), tool(path, "weather", strict=True)]
    reply = ask(front, path, tools=twice, tool_choice=chosen)
    assert reply.status == 400 and reply.error["message"].startswith(NAMED[path]), reply
    assert "tools[0]" in reply.error["message"] and not front.submits()
    if path != MESSAGES:
        assert reply.error["param"] == NAMED[path]


def test_names_that_are_one_in_the_template_are_refused(front: AgentFront) -> None:
    """A namespace is the start of its tools' names there."""
    inner = {"type": "namespace", "name": "a", "tools": [tool(RESPONSES, "b")]}
    custom = {"type": "custom", "name": "a__b"}
    reply = ask(front, RESPONSES, tools=[inner, custom])
    assert reply.status == 400 and reply.error["param"] == "tools[1].name"
    assert "tools[0].tools[0].name" in reply.error["message"]
    assert ask(front, RESPONSES, tools=[inner, {**custom, "name": "b"}]).status == 200


@pytest.mark.parametrize(
    "wrong", [{"parameters": []}, {"parameters": "{}"}, {"parameters": True}, {"description": 1}]
)
def test_a_function_s_fields_have_their_types(front: AgentFront, wrong: dict[str, Any]) -> None:
    (field,) = wrong
    reply = ask(front, CHAT, tools=[tool(CHAT, "weather", **wrong)])
    assert reply.status == 400 and reply.error["param"] == f"tools[0].function.{field}"
    absent = tool(CHAT, "weather", **{field: None})
    assert ask(front, CHAT, tools=[absent]).status == 200
