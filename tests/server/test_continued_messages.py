"""`continue_final_message` of chats: the answer goes on in the last message."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasuki.server.openai.generation import ServedModel
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import AgentFront
from tests.harness.http_fixtures import running_http

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
    """SGLang's callers send the one field alone."""
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
