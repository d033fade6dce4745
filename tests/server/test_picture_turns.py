"""Tests of pictures over HTTP in Messages and Responses: golden answers, stored turns, refusals."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tasuki.cli.generate import GenerateConfig, PromptFileError, read_prompts
from tasuki.cli.prompt_answers import answer_all
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt, SamplingOptions
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import ANTHROPIC, Reply, ask
from tests.harness.picture_answers import CASES, FOLDER, cached, chat, messages_of, url_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running

pytestmark = needs_goldens

FILES = ("tiny.png", "photo.jpg")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP)) as found:
        yield found


def source_of(name: str) -> dict[str, str]:
    head, _, data = url_of(name).partition(",")
    return {"type": "base64", "media_type": head[len("data:") :].split(";")[0], "data": data}


def block_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a golden message in Anthropic's form."""
    if part["type"] == "image":
        return {"type": "image", "source": source_of(part["image"])}
    return dict(part)


def input_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a golden message in the form of Responses."""
    if part["type"] == "image":
        return {"type": "input_image", "image_url": url_of(part["image"])}
    return {"type": "input_text", "text": part["text"]}


def message(node: Node, messages: object, **fields: object) -> Reply:
    body = {"model": node_model(node), "messages": messages, "max_tokens": 20, "temperature": 0}
    return ask(node.http_address, "POST", "/v1/messages", {**body, **fields}, ANTHROPIC)


def respond(node: Node, given: object, **fields: object) -> Reply:
    body = {"input": given, "max_output_tokens": 20, "temperature": 0, **fields}
    return ask(node.http_address, "POST", "/v1/responses", body)


def node_model(node: Node) -> str:
    name: str = ask(node.http_address, "GET", "/v1/models").json["data"][0]["id"]
    return name


def text_of(response: Reply) -> str:
    assert response.status == 200, response.body
    found: str = response.json["output"][-1]["content"][0]["text"]
    return found


def golden_text(node: Node, name: str) -> str:
    """Return the golden answer's text, checked against its tokens."""
    case = CASES[name]
    choice = chat(node, messages_of(case), len(case["greedy"])).json["choices"][0]
    assert choice["token_ids"] == case["greedy"]
    found: str = choice["message"]["content"]
    return found


def items_of(name: str) -> list[dict[str, Any]]:
    """Return the last message of a golden chat as an input of Responses."""
    content = CASES[name]["messages"][-1]["content"]
    return [{"role": "user", "content": [input_of(part) for part in content]}]


@pytest.mark.parametrize("name", ["middle", "two", "odd"])
def test_golden_answers_of_messages(node: Node, name: str) -> None:
    case = CASES[name]
    (only,) = case["messages"]
    messages = [{**only, "content": [block_of(part) for part in only["content"]]}]
    reply = message(node, messages, cache_salt="messages")
    assert reply.status == 200, reply.body
    assert reply.json["content"][0]["text"] == golden_text(node, name)
    assert reply.json["usage"]["input_tokens"] == len(case["prompt"])
    counted = ask(
        *(node.http_address, "POST", "/v1/messages/count_tokens"),
        {"model": node_model(node), "messages": messages},
        ANTHROPIC,
    )
    assert counted.json["input_tokens"] == len(case["prompt"])


def test_a_tool_result_shows_a_picture(node: Node) -> None:
    """Claude Code's Read answers with a picture."""
    picture = {"type": "image", "source": source_of("a.png")}
    called = [
        {"role": "user", "content": "read it"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {}}],
        },
    ]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [picture]}
    tools = [{"name": "Read", "input_schema": {"type": "object"}}]
    seen = message(node, [*called, {"role": "user", "content": [result]}], tools=tools)
    blind = {**result, "content": "a.png"}
    told = message(node, [*called, {"role": "user", "content": [blind]}], tools=tools)
    assert seen.status == told.status == 200, seen.body
    # 12 placeholders and two tokens around them, in place of five characters.
    assert seen.json["usage"]["input_tokens"] == told.json["usage"]["input_tokens"] + 14 - 5


def test_golden_answers_of_responses(node: Node) -> None:
    reply = respond(node, items_of("middle"), store=False, cache_salt="responses")
    assert text_of(reply) == golden_text(node, "middle")
    assert reply.json["usage"]["input_tokens"] == len(CASES["middle"]["prompt"])


def test_an_output_of_a_function_shows_a_picture(node: Node) -> None:
    """Codex's view_image answers with a picture."""
    items = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", "name": "view_image", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_image", "image_url": url_of("a.png")}],
        },
    ]
    seen = respond(node, items, store=False)
    told = respond(node, [*items[:2], {**items[2], "output": "a.png"}], store=False)
    assert text_of(seen) != text_of(told)
    assert seen.json["usage"]["input_tokens"] == told.json["usage"]["input_tokens"] + 14 - 5


def session(node: Node, by: str) -> list[Reply]:
    """Return the three turns of the golden session, each with its new message only. by: the name
    of the field that continues it."""
    turns: list[Reply] = []
    fields: dict[str, object] = {}
    if by == "conversation":
        begun = ask(node.http_address, "POST", "/v1/conversations", {})
        fields = {by: begun.json["id"]}
    for name in ("middle", "turn2", "turn3"):
        turns.append(respond(node, items_of(name), **fields, cache_salt=by))
        assert text_of(turns[-1]) == golden_text(node, name)
        if by != "conversation":
            fields = {by: turns[-1].json["id"]}
    return turns


@pytest.mark.parametrize("by", ["previous_response_id", "conversation"])
def test_stored_turns_keep_their_pictures(node: Node, by: str) -> None:
    ended = 0
    for name, reply in zip(("middle", "turn2", "turn3"), session(node, by), strict=True):
        case, usage = CASES[name], reply.json["usage"]
        assert usage["input_tokens"] == len(case["prompt"])
        assert usage["input_tokens_details"]["cached_tokens"] == ended
        ended = len(case["prompt"]) + len(case["greedy"]) - 1


def test_a_stored_turn_is_rendered_again_with_its_pictures(node: Node) -> None:
    """Other instructions, so the stored tokens are not continued."""
    first = respond(node, items_of("middle"))
    fields = {"instructions": "be brief", "previous_response_id": first.json["id"]}
    again = respond(node, items_of("turn2"), **fields)
    messages = [{"role": "system", "content": "be brief"}, *messages_of(CASES["turn2"])]
    whole = chat(node, messages)
    assert text_of(again) == whole.json["choices"][0]["message"]["content"]
    assert again.json["usage"]["input_tokens"] == whole.json["usage"]["prompt_tokens"]


def test_chats_hit_what_messages_left(node: Node) -> None:
    (only,) = CASES["big"]["messages"]
    messages = [{**only, "content": [block_of(part) for part in only["content"]]}]
    assert message(node, messages, cache_salt="shared").status == 200
    assert cached(chat(node, messages_of(CASES["big"]), cache_salt="shared")) == 158


def test_grpc_answers_parts_and_refuses_them_by_name(node: Node) -> None:
    case = CASES["two"]
    (only,) = case["messages"]
    shown = [
        (FOLDER / "images" / part["image"]).read_bytes() if "image" in part else part["text"]
        for part in only["content"]
    ]
    prompt = Prompt(messages=[{"role": "user", "parts": shown}])
    options: SamplingOptions = {"max_new_tokens": len(case["greedy"]), "ignore_eos": True}
    answer = node.client.generate(prompt, cache_salt=b"grpc", **options).result()
    assert [*answer.token_ids] == case["greedy"]
    assert answer.usage.prompt_tokens == len(case["prompt"])
    refused: dict[str, tuple[dict[str, object], str]] = {
        "role": ({"role": "system", "parts": ["a"]}, "need the role user or tool"),
        "both": ({"role": "user", "content": "a", "parts": ["a"]}, "both content and parts"),
        "file": ({"role": "user", "parts": ["a", b"words"]}, "items[0].parts[1]"),
        "empty": ({"role": "user", "parts": [b""]}, "parts[0].picture.file is empty"),
    }
    for message, complaint in refused.values():
        with pytest.raises(ClientError, match=re.escape(complaint)):
            node.client.generate(Prompt(messages=[message])).result()


def test_generate_shows_files(node: Node) -> None:
    files = [str(FOLDER / "images" / name) for name in FILES]
    config = GenerateConfig(str(FOLDER), prompt="N3mL", image=",".join(files), max_new_tokens=8)
    (answer,) = answer_all(node.client, read_prompts(config), [[]], config.sampling())
    parts = [{"type": "image_url", "image_url": {"url": url_of(name)}} for name in FILES]
    content = [*parts, {"type": "text", "text": "N3mL"}]
    asked = chat(node, [{"role": "user", "content": content}], 8, ignore_eos=False)
    assert [*answer.token_ids] == asked.json["choices"][0]["token_ids"]
    assert answer.usage.prompt_tokens == asked.json["usage"]["prompt_tokens"]
    with pytest.raises(PromptFileError, match=r"--image missing.png: cannot be read"):
        read_prompts(GenerateConfig(prompt="a", image="missing.png"))
    with pytest.raises(ValueError, match="--image needs --prompt TEXT"):
        GenerateConfig(prompt_ids="a.json", image="missing.png")
