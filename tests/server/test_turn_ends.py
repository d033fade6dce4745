"""Tests of turns without their exact end, because of the template or of a client without thoughts.
They check each published Qwen template and the reported end of the prompt's last message."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasuki.model.named_checkpoints import embedded_model
from tasuki.server.openai.generation import ServedModel
from tasuki.server.text.chat_message import ChatMessage, ToolCall
from tasuki.server.text.rendering.chat_template import ChatTemplate, RenderedPrompt
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import Tokenizer
from tests.harness.agent_front import AgentFront
from tests.harness.dictated_node import template_names, template_source
from tests.harness.http_fixtures import running_http

SYSTEM = ChatMessage("system", "Be brief.")
USER = ChatMessage("user", "Where?")
RESULT = ChatMessage("tool", "line")
CALL = (ToolCall("look", {}),)


def answer(thought: str | None, *, calls: bool = False) -> ChatMessage:
    return ChatMessage("assistant", "There.", CALL if calls else (), thought)


CONVERSATIONS = {
    "first": [SYSTEM, USER],
    "question": [SYSTEM, USER, answer("Hm."), USER],
    "question, none returned": [SYSTEM, USER, answer(None), USER],
    "result": [SYSTEM, USER, answer("Hm.", calls=True), RESULT],
    "result, none returned": [SYSTEM, USER, answer(None, calls=True), RESULT],
}
ALL = set(CONVERSATIONS)
NOT_RETURNED = {"question, none returned", "result, none returned"}
OF_QUESTIONS = ALL - {"result", "result, none returned"}
# Conversations that lose their end, by template and thinking variable; None leaves the default.
LOST: dict[tuple[str, bool | None], set[str]] = {
    ("qwen3", None): ALL - {"result"},
    # An answer in the history has no empty thought, but the opening has one.
    ("qwen3", False): ALL,
    ("qwen3_5_think", None): ALL - {"result"},
    ("qwen3_5_think", False): OF_QUESTIONS,
    ("qwen3_5_nothink", None): OF_QUESTIONS,
    ("qwen3_5_nothink", True): ALL - {"result"},
    ("qwen3_6", None): ALL - {"result"},
    ("qwen3_6", False): OF_QUESTIONS,
    # The template keeps thoughts if the client returns them; the first turn cannot show this yet.
    ("qwen3_8", None): {"first", *NOT_RETURNED},
    ("qwen3_8", False): set(),
}


def template_of(name: str) -> ChatTemplate:
    tokenizer = Tokenizer.load(embedded_model())
    assert tokenizer is not None
    return ChatTemplate(template_source(name), tokenizer, {})


def rendered(
    template: ChatTemplate, messages: list[ChatMessage], variables: Mapping[str, Any]
) -> RenderedPrompt:
    return template.prompt(messages, open_answer=True, variables=variables)


@pytest.mark.parametrize(("name", "thinks"), LOST, ids=str)
def test_which_turns_lose_their_end(name: str, thinks: bool | None) -> None:
    template = template_of(name)
    variables = {} if thinks is None else {"enable_thinking": thinks}
    for _ in range(2):
        # The second round uses the remembered conversation.
        found = {
            title
            for title, messages in CONVERSATIONS.items()
            if rendered(template, messages, variables).message_end is not None
        }
        assert found == LOST[name, thinks]


def test_every_template_is_told_of() -> None:
    assert {name for name, _ in LOST} == set(template_names())


def test_what_is_remembered_is_of_the_same_variables() -> None:
    template = template_of("qwen3_6")
    messages = CONVERSATIONS["question"]
    for _ in range(2):
        assert rendered(template, messages, {}).message_end is not None
        assert rendered(template, messages, {"preserve_thinking": True}).message_end is None


@pytest.mark.parametrize("name", template_names())
@pytest.mark.parametrize("title", CONVERSATIONS)
def test_the_next_turn_begins_with_all_before_that_end(name: str, title: str) -> None:
    """If the exact end is lost, expect at most an answer's opening after that message's end."""
    template, messages = template_of(name), CONVERSATIONS[title]
    prompt = rendered(template, messages, {})
    if prompt.message_end is None:
        return
    closed = template.prompt(messages, open_answer=False)
    assert prompt.tokens[: prompt.message_end].tolist() == closed.tokens.tolist()
    behind = USER if messages[-1].role == "user" else RESULT
    following = [*messages, answer(None, calls=behind is RESULT), behind]
    begun = rendered(template, following, {}).tokens[: prompt.message_end]
    assert begun.tolist() == prompt.tokens[: prompt.message_end].tolist()


def test_an_answer_that_is_continued_has_none() -> None:
    template = template_of("qwen3_6")
    messages = [SYSTEM, USER, answer(None)]
    assert template.prompt(messages, open_answer=False).message_end is None


CHAT = "/v1/chat/completions"
TEMPLATES = Path(__file__).parents[1] / "harness" / "qwen_templates"
GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}
ASKED = [
    {"role": "user", "content": "it was"},
    {"role": "assistant", "reasoning_content": "so", "content": "The answer is"},
]


@pytest.fixture(params=["qwen3.jinja", "qwen3_5_think.jinja", "qwen3_6.jinja", "qwen3_8.jinja"])
def front(codec: TextCodec, request: pytest.FixtureRequest) -> Iterator[AgentFront]:
    source = (TEMPLATES / request.param).read_text(encoding="utf-8")
    template = ChatTemplate(source, codec.require_tokenizer(), {})
    served = replace(codec, template=template)
    with running_http(served, model=ServedModel("tiny", 1, 4000, served)) as http:
        found = AgentFront(http, served)
        found.say(" fine")
        yield found


def test_an_answer_goes_on_at_the_last_token_of_the_message(front: AgentFront) -> None:
    tokens = front.codec.require_tokenizer().encode("The answer is")
    reply = front.http.post(CHAT, {"messages": ASKED, **GOES_ON})
    assert reply.json["choices"][0]["message"]["content"] == " fine"
    prompt = front.submits()[-1].prompt.tolist()
    assert prompt[-len(tokens) :] == tokens
    closed = front.http.post("/tokenize", {"messages": ASKED, "add_generation_prompt": False})
    whole = closed.json["tokens"]
    assert whole[: len(prompt)] == prompt
    assert front.text(whole[len(prompt) :]) == "<|im_end|>\n"
    assert front.http.post("/tokenize", {"messages": ASKED, **GOES_ON}).json["tokens"] == prompt
    assert all(mark <= len(prompt) for mark in front.submits()[-1].marks)


def test_a_message_goes_on_where_no_generation_prompt_is_asked_for(front: AgentFront) -> None:
    """Accept the one field alone, as SGLang's callers send it."""
    both = front.http.post("/tokenize", {"messages": ASKED, **GOES_ON}).json["tokens"]
    alone = {"messages": ASKED, "continue_final_message": True, "add_generation_prompt": None}
    assert front.http.post("/tokenize", alone).json["tokens"] == both
    reply = front.http.post(CHAT, {"messages": ASKED, "continue_final_message": True})
    assert reply.status == 200, reply
    assert front.submits()[-1].prompt.tolist() == both


@pytest.mark.parametrize(
    "fields",
    [
        {"continue_final_message": True, "add_generation_prompt": True},
        {**GOES_ON, "messages": ASKED[:1]},
        {
            **GOES_ON,
            "messages": [
                ASKED[0],
                {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
            ],
        },
        {"continue_final_message": "yes", "add_generation_prompt": False},
    ],
    ids=str,
)
def test_a_message_that_cannot_go_on_is_refused_by_the_field_s_name(
    front: AgentFront, fields: dict[str, Any]
) -> None:
    reply = front.http.post(CHAT, {"messages": ASKED, **fields})
    assert (reply.status, reply.error["param"]) == (400, "continue_final_message")
    assert not front.submits()
