"""Tests of turn ends over HTTP, with a real engine and each published Qwen template. A turn sent
back unchanged, over chats, Messages or Responses, resumes at its exact end. So does a turn
continued by its id. If the client or the template drops the turn's thoughts, it resumes at the end
of its last message."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.dictated_node import (
    DictatedNode,
    dictated_node,
    template_names,
    template_source,
)
from tests.harness.http_calls import Reply

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "lines": {"type": "integer"},
                    "deep": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "parts": {"type": "array"},
                },
            },
        },
    }
]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
TURNS = 10
QUESTIONS = 6
"""Turns of questions alone, and of a client that drops thoughts: four pages."""
FEW_TURNS = 4
"""Turns over Messages and Responses, still over several pages. Their turns take the same path as
chats."""
OPENING = 8
"""Bound above the tokens an answer's opening shares with the answer's start in the history."""
# Templates that keep thoughts from before the last question.
KEEPS = {"qwen3_8"}
KEEPS_WHERE_ASKED = {"qwen3_6", "qwen3_8"}


@pytest.fixture(scope="module", params=template_names())
def template(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def node(template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DictatedNode]:
    folder = tmp_path_factory.mktemp(template)
    with dictated_node(folder, template_source(template)) as running:
        yield running


class Ends:
    """The ends of a conversation's turns, and the points where turns resumed."""

    def __init__(self) -> None:
        # For each turn: tokens of the turn before, and the part of them found.
        self.turns: list[tuple[int, int]] = []
        self._before = 0

    def add(self, cached: int, prompt: int, answer: int) -> None:
        self.turns.append((self._before, cached))
        self._before = prompt + answer

    def exact(self) -> list[bool]:
        """Return true for each turn, except the first, that resumed at the exact end of the turn
        before. The exact end has all tokens but the last, sampled and never computed."""
        return [cached == before - 1 for before, cached in self.turns[1:]]


class Chat:
    """A client that sends back every message unchanged."""

    def __init__(self, node: DictatedNode, template: str, **fields: Any) -> None:
        self.node = node
        self.template = template
        self.fields = {"tools": TOOLS, "temperature": 0, "max_tokens": 200, **fields}
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
        self.hybrid: list[dict[str, Any]] = []
        self.ends = Ends()
        # For each turn but the first: tokens shared with the turn before and its answer, but not
        # found.
        self.lost: list[int] = []
        self._before: list[int] = []

    def say(self, role: str, content: str) -> None:
        calls = self.messages[-1].get("tool_calls", [])
        known = {"tool_call_id": calls[0]["id"]} if role == "tool" else {}
        self.messages.append({"role": role, "content": content, **known})

    def answer(self, text: str, stream: bool) -> dict[str, Any]:
        """Ask for an answer and return its usage. text: the model's output after the prompt."""
        body = {"messages": self.messages, **self.fields}
        prompt = self.node.prompt(body)
        self.node.dictate_behind(len(prompt), text)
        if stream:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            reply = self.node.post("/v1/chat/completions", {**body, **options})
            message, usage = assembled(reply), reply.events[-1]["usage"]
        else:
            told = self.node.post("/v1/chat/completions", body, {"x-tasuki-hit": "1"}).json
            message, usage = told["choices"][0]["message"], told["usage"]
            self.hybrid.append(usage["prompt_tokens_details"]["hybrid"])
        self.messages.append(self.sent_back(message))
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.ends.add(cached, usage["prompt_tokens"], usage["completion_tokens"])
        if self._before:
            # The last token of an answer was never computed.
            shared = min(common(self._before, prompt), len(self._before) - 1)
            self.lost.append(shared - cached)
        self._before = prompt + self.node.tokens_of(text) + [self.node.end_token]
        return usage

    def sent_back(self, message: dict[str, Any]) -> dict[str, Any]:
        return message


class ForgetfulChat(Chat):
    """A client without thoughts in its history, like many agents."""

    def sent_back(self, message: dict[str, Any]) -> dict[str, Any]:
        thoughts = ("reasoning_content", "reasoning")
        return {name: value for name, value in message.items() if name not in thoughts}


def common(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def assembled(reply: Reply) -> dict[str, Any]:
    """Assemble a message from its deltas, as clients do."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for event in reply.events:
        for choice in event["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content", "reasoning"):
                if delta.get(name):
                    message[name] = message.get(name, "") + delta[name]
            for piece in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if "id" in piece:
                    calls.append({**piece, "function": {**piece["function"]}})
                else:
                    calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return message


def thought(template: str, text: str) -> str:
    """Return the model's continuation of this template's prompt, with `text` as its thought."""
    if template == "qwen3":
        return f"<think>\n{text}\n</think>\n\n"
    return "" if template == "qwen3_5_nothink" else f"{text}\n</think>\n\n"


def call(template: str, arguments: dict[str, Any]) -> str:
    if template == "qwen3":
        told = json.dumps({"name": "look", "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>\n{told}\n</tool_call>"
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in arguments.items()
    }
    parameters = "".join(
        f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in texts.items()
    )
    return f"<tool_call>\n<function=look>\n{parameters}</function>\n</tool_call>"


ARGUMENTS: list[dict[str, Any]] = [
    {"path": "src/main.py", "lines": 20},
    {"path": 'a "quoted"\n\nline', "parts": [1, {"a": "b"}]},
    {"path": "</parameter>\nfoo", "deep": "x"},
]


def test_ten_turns_with_tools_resume_at_their_exact_ends(node: DictatedNode, template: str) -> None:
    """Ask one question with nine calls, so no thought precedes the last question. Every second
    answer is a stream."""
    chat = Chat(node, template, cache_salt="tools")
    chat.say("user", "What is in the file?")
    for turn in range(TURNS - 1):
        content = "I look.\n\n" if turn % 2 and template != "qwen3" else ""
        text = thought(template, f"Now {turn}.") + content
        usage = chat.answer(text + call(template, ARGUMENTS[turn % 3]), turn % 2 == 1)
        (called,) = chat.messages[-1]["tool_calls"]
        assert json.loads(called["function"]["arguments"]) == ARGUMENTS[turn % 3]
        assert (chat.messages[-1]["content"] or "") == content.strip()
        if template != "qwen3_5_nothink":
            assert chat.messages[-1]["reasoning_content"] == f"Now {turn}."
            assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < 12
        chat.say("tool", f"line {turn}")
    chat.answer(thought(template, "Done.") + "That is all.", True)
    assert chat.ends.exact() == [True] * (TURNS - 1), chat.ends.turns


@pytest.mark.parametrize("asked", [None, True])
def test_questions_resume_where_the_template_keeps_what_was_thought(
    node: DictatedNode, template: str, asked: bool | None
) -> None:
    fields = {} if asked is None else {"chat_template_kwargs": {"preserve_thinking": asked}}
    chat = Chat(node, template, cache_salt=f"questions {asked}", **fields)
    for turn in range(QUESTIONS):
        chat.say("user", f"What is {turn} and one?")
        chat.answer(thought(template, f"It is {turn}.") + f"It is {turn + 1}.", False)
    keeps = KEEPS_WHERE_ASKED if asked else KEEPS
    assert chat.ends.exact() == [template in keeps] * (QUESTIONS - 1), chat.ends.turns
    for turn, told in enumerate(chat.hybrid[1:], 1):
        causes = {cause for cause, tokens in told["causes"].items() if tokens}
        changed = told.get("template_changed_at")
        if template in keeps:
            assert changed is None and causes == {"new"}
            continue
        # A state is kept at the end of the question, before the first changed answer.
        _, cached = chat.ends.turns[turn]
        # The cause covers the opening, as far as it equals the answer in the history.
        assert causes - {"alignment", "never_checkpointed"} == {"new", "template_changed"}
        assert 0 <= changed - cached < OPENING, (changed, cached)
        # The new tokens are the question and the answer's opening.
        assert told["causes"]["new"] < 40


QUESTION = "What is {} and one? " + "Mind what was said before, and say it in one word. "


@pytest.mark.parametrize("kind", [Chat, ForgetfulChat])
def test_no_question_loses_more_than_an_answer_s_opening(
    node: DictatedNode, template: str, kind: type[Chat]
) -> None:
    """Lose less than an answer's opening at any page boundary, with or without thoughts returned by
    the client."""
    chat = kind(node, template, cache_salt=f"lost {kind.__name__}")
    for turn in range(QUESTIONS):
        chat.say("user", QUESTION.format(turn) + "Really. " * turn)
        chat.answer(thought(template, f"It is {turn}.") + f"It is {turn + 1}.", turn % 2 == 1)
    assert all(0 <= lost < OPENING for lost in chat.lost), chat.lost


def test_no_call_loses_more_than_an_answer_s_opening(node: DictatedNode, template: str) -> None:
    """Use a client without returned thoughts, one question and its calls."""
    chat = ForgetfulChat(node, template, cache_salt="lost calls")
    chat.say("user", "What is in the file?")
    for turn in range(QUESTIONS):
        text = thought(template, f"Now {turn}.") + call(template, ARGUMENTS[turn % 3])
        chat.answer(text, turn % 2 == 1)
        chat.say("tool", f"line {turn} " * (turn + 1))
    assert all(0 <= lost < OPENING for lost in chat.lost), chat.lost


def test_a_question_behind_calls_goes_on_where_the_one_before_ended(
    node: DictatedNode, template: str
) -> None:
    """Use a client that returns thoughts; templates drop them once another question is asked. The
    calls in between leave no state for the later prompt, and evict none."""
    chat = Chat(node, template, cache_salt="behind calls")
    for question in range(3):
        chat.say("user", QUESTION.format(question))
        for turn in range(2):
            text = thought(template, f"Now {turn}.") + call(template, ARGUMENTS[turn])
            chat.answer(text, False)
            chat.say("tool", f"line {turn}")
        chat.answer(thought(template, "Done.") + "That is all.", False)
    assert all(0 <= lost < OPENING for lost in chat.lost), chat.lost


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_a_message_that_comes_back(node: DictatedNode, template: str, display: str) -> None:
    tool = {"name": "look", "input_schema": SCHEMA}
    fields = {
        "tools": [tool],
        "temperature": 0,
        "max_tokens": 200,
        "cache_salt": display,
        "output_config": {"effort": "high"},
    }
    if template != "qwen3_5_nothink":
        fields["thinking"] = {"type": "adaptive", "display": display}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is in the file?"}]
    ends = Ends()
    for turn in range(FEW_TURNS):
        # Claude Code begins its instructions in this form, with other letters in each request.
        bill = f"x-anthropic-billing-header: cc_version=2.1; cch={turn:05x};"
        system = [{"type": "text", "text": text} for text in (bill, "Be brief.")]
        body = {**fields, "system": system, "messages": messages}
        counted = node.post("/v1/messages/count_tokens", body).json["input_tokens"]
        node.dictate_behind(
            counted, thought(template, f"Now {turn}.") + call(template, {"path": f"a{turn}"})
        )
        told = node.post("/v1/messages", body).json
        assert told["stop_reason"] == "tool_use"
        usage = told["usage"]
        cached = usage["cache_read_input_tokens"]
        assert usage["input_tokens"] + cached == counted
        ends.add(cached, counted, usage["output_tokens"])
        use = told["content"][-1]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": f"line {turn}"}
        messages += [
            {"role": "assistant", "content": told["content"]},
            {"role": "user", "content": [result]},
        ]
    assert ends.exact() == [True] * (FEW_TURNS - 1), ends.turns


def test_a_small_target_of_thinking_is_the_template_s_effort(
    node: DictatedNode, template: str
) -> None:
    def counted(effort: str | None = None, **thinking: Any) -> int:
        chosen = {"type": "enabled", **thinking}
        body = {"messages": [{"role": "user", "content": "Where?"}], "thinking": chosen}
        config = {} if effort is None else {"output_config": {"effort": effort}}
        reply = node.post("/v1/messages/count_tokens", {**body, **config})
        tokens: int = reply.json["input_tokens"]
        return tokens

    assert counted(budget_tokens=1024) == counted("low")
    assert counted(budget_tokens=1024, effort="medium") == counted("medium")
    assert counted(budget_tokens=8192) == counted()
    assert (counted("low") != counted()) is (template == "qwen3_8")


def responded(node: DictatedNode, body: dict[str, Any], text: str) -> dict[str, Any]:
    probe = {**body, "cache_salt": "probe", "max_output_tokens": 1, "store": False}
    usage = node.post("/v1/responses", probe).json["usage"]
    node.dictate_behind(usage["input_tokens"], text)
    reply = node.post("/v1/responses", body)
    assert reply.status == 200, reply
    told: dict[str, Any] = reply.json
    assert told["usage"]["input_tokens"] == usage["input_tokens"]
    return told


@pytest.mark.parametrize("by_id", [False, True])
def test_a_response_that_is_gone_on_from(node: DictatedNode, template: str, by_id: bool) -> None:
    tool = {"type": "function", "name": "look", "parameters": SCHEMA}
    fields = {
        "tools": [tool],
        "temperature": 0,
        "max_output_tokens": 200,
        "instructions": "Be brief.",
        "cache_salt": f"by id {by_id}",
        "reasoning": {"effort": "high"},
    }
    given: list[dict[str, Any]] = [{"role": "user", "content": "What is in the file?"}]
    name: str | None = None
    ends = Ends()
    for turn in range(FEW_TURNS):
        body = {**fields, "input": given, "previous_response_id": name, "store": by_id}
        told = responded(
            node, body, thought(template, f"Now {turn}.") + call(template, {"path": f"a{turn}"})
        )
        usage = told["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        ends.add(cached, usage["input_tokens"], usage["output_tokens"])
        call_id = told["output"][-1]["call_id"]
        result = {"type": "function_call_output", "call_id": call_id, "output": f"line {turn}"}
        name = told["id"] if by_id else None
        given = [result] if by_id else [*given, *told["output"], result]
    assert ends.exact() == [True] * (FEW_TURNS - 1), ends.turns


def test_a_new_question_behind_a_stored_response(node: DictatedNode, template: str) -> None:
    """Resume exactly, even if the template, given the whole conversation, would drop its
    thoughts."""
    fields = {"temperature": 0, "max_output_tokens": 200, "cache_salt": "questions"}
    name: str | None = None
    ends = Ends()
    for turn in range(FEW_TURNS):
        body = {**fields, "input": f"What is {turn}?", "previous_response_id": name}
        told = responded(node, body, f"{thought(template, f'Now {turn}.')}It is {turn}.")
        usage = told["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        ends.add(cached, usage["input_tokens"], usage["output_tokens"])
        name = told["id"]
    assert ends.exact() == [True] * (FEW_TURNS - 1), ends.turns
