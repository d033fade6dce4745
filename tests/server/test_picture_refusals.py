"""Tests of nodes that see nothing: every API refuses a picture by its place, model and fix."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasuki.cli.generate import GenerateConfig, read_prompts
from tasuki.cli.prompt_answers import answer_all
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import ANTHROPIC, Reply, ask
from tests.harness.picture_answers import CASES, FOLDER, chat, messages_of, url_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running

pytestmark = needs_goldens
NO_TOWER = "no-tower has no vision tower: send text, or serve a checkpoint with vision_config"
UNUSED = (
    "this node serves vision-dense without its vision tower: send text, or ask a node that sees"
)
URL = url_of("a.png") if CASES else ""
PART = {"type": "image_url", "image_url": {"url": URL}}
BLOCK = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]},
}
ITEM = {"type": "input_image", "image_url": URL}


@pytest.fixture(scope="module", params=["no tower", "vision off"])
def blind(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    """A node that sees nothing, and the reason it gives."""
    folder, own, reason = FOLDER, ("--vision", "off"), UNUSED
    if request.param == "no tower":
        folder, own, reason = tmp_path_factory.mktemp("a") / "no-tower", (), NO_TOWER
        shutil.copytree(FOLDER, folder)
        config = json.loads((folder / "config.json").read_text())
        del config["vision_config"]
        (folder / "config.json").write_text(json.dumps(config))
    with running(Node("serve", *flags(folder, arena_mib=16), *HTTP, *own)) as node:
        yield node, reason


def post(node: Node, path: str, body: dict[str, Any], **headers: str) -> Reply:
    return ask(node.http_address, "POST", path, body, headers or None)


def user(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def message(node: Node, content: list[dict[str, Any]], path: str = "/v1/messages") -> Reply:
    listed = ask(node.http_address, "GET", "/v1/models").json["data"][0]
    body = {"model": listed["id"], "max_tokens": 4, "messages": user(content)}
    return ask(node.http_address, "POST", path, body, ANTHROPIC)


RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [BLOCK]}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [ITEM]}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
DOORS: dict[str, tuple[Callable[[Node], Reply], str]] = {
    "chat": (lambda node: chat(node, user([PART])), "messages[0].content[0]"),
    "tool's chat": (
        lambda node: chat(node, [*user([]), {"role": "tool", "content": [PART]}]),
        "messages[1].content[0]",
    ),
    "tokenize": (
        lambda node: post(node, "/tokenize", {"messages": user([PART])}),
        "messages[0].content[0]",
    ),
    "message": (lambda node: message(node, [BLOCK]), "messages[0].content[0]"),
    "tool's result": (
        lambda node: message(node, [RESULT]),
        "messages[0].content[0].content[0]",
    ),
    "count": (
        lambda node: message(node, [BLOCK], "/v1/messages/count_tokens"),
        "messages[0].content[0]",
    ),
    "response": (
        lambda node: post(node, "/v1/responses", {"input": user([ITEM])}),
        "input[0].content[0]",
    ),
    "function's output": (
        lambda node: post(node, "/v1/responses", {"input": [CALL, OUTPUT]}),
        "input[1].output[0]",
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_http_names_place_model_and_fix(blind: tuple[Node, str], door: str) -> None:
    node, reason = blind
    sent, place = DOORS[door]
    reply = sent(node)
    assert reply.status == 400, reply.body
    assert f"{place} is a picture, and {reason}" in reply.error["message"]
    if "code" in reply.error:
        assert reply.error["code"] == "picture_unseen"


def test_grpc_names_place_model_and_fix(blind: tuple[Node, str], tmp_path: Path) -> None:
    node, reason = blind
    prompt = Prompt(messages=[{"role": "user", "parts": ["see", b"file"]}])
    complaint = f"messages.items[0].parts[1] is a picture, and {reason}"
    with pytest.raises(ClientError) as refused:
        node.client.generate(prompt).result()
    assert refused.value.kind == "picture_unseen" and complaint in str(refused.value)
    with node.client.open_session() as session:
        with pytest.raises(ClientError) as refused:
            session.append(prompt)
        assert refused.value.kind == "picture_unseen" and complaint in str(refused.value)
    (tmp_path / "a.png").write_bytes(b"file")
    config = GenerateConfig(prompt="a", image=str(tmp_path / "a.png"))
    with pytest.raises(ClientError, match=r"parts\[0\] is a picture, and"):
        answer_all(node.client, read_prompts(config), [[]], config.sampling())


def test_text_is_answered_and_the_card_says_what_is_taken(blind: tuple[Node, str]) -> None:
    node, _ = blind
    case = CASES["text"]
    reply = chat(node, messages_of(case), len(case["greedy"]))
    assert reply.json["choices"][0]["token_ids"] == case["greedy"]
    assert "image_tokens" not in reply.json["usage"]["prompt_tokens_details"]
    card = ask(node.http_address, "GET", "/v1/models").json["data"][0]
    assert card["capabilities"] == {"vision": False}
    assert card["architecture"]["input_modalities"] == ["text"]
    text = ask(node.http_address, "GET", "/metrics").body.decode()
    assert "tasuki_picture" not in text


def test_a_message_has_32_mib_at_most(blind: tuple[Node, str]) -> None:
    node, _ = blind
    reply = ask(node.http_address, "POST", "/tokenize", {"prompt": "a" * (33 << 20)})
    assert reply.status == 413 and "more than 32 MiB" in reply.error["message"]


def test_a_node_that_sees_says_so_and_takes_64_mib() -> None:
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP)) as node:
        card = ask(node.http_address, "GET", "/v1/models/vision-dense").json
        assert card["capabilities"] == {"vision": True}
        assert card["architecture"]["input_modalities"] == ["text", "image"]
        text = {"role": "user", "content": [{"type": "text", "text": "see"}, PART]}
        padded = {"messages": [text], "max_tokens": 1, "user": "a" * 8}
        assert post(node, "/v1/chat/completions", padded).status == 200
        long = {"prompt": "a" * (33 << 20)}
        # It is read, and its text is too long for the model.
        assert post(node, "/tokenize", long).status == 400
        reply = post(node, "/tokenize", {"prompt": "a" * (65 << 20)})
        assert reply.status == 413 and "more than 64 MiB" in reply.error["message"]
