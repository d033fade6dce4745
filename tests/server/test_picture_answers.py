"""Tests of answers to pictures over HTTP: golden answers from files, hits, refusals, by every API."""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.harness.daemons import Node, flags
from tests.harness.goldens import BESIDE
from tests.harness.http_calls import Reply, ask
from tests.harness.picture_files import data_url, picture_file
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP

MODEL = "vision-dense"
FOLDER = BESIDE / MODEL
CHAT = "/v1/chat/completions"
HIT = {"x-tasuki-hit": "1"}

pytestmark = needs_goldens


def golden_cases() -> dict[str, dict[str, Any]]:
    """Return the cases of chats with images, by name."""
    file = FOLDER / "golden.json"
    cases = json.loads(file.read_text())["cases"] if file.exists() else []
    return {
        case["name"]: case
        for case in cases
        if case.get("raw_text") is None and all(item["kind"] == "image" for item in case["items"])
    }


CASES = golden_cases()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    found = Node("serve", *flags(FOLDER, arena_mib=16), *HTTP).wait_ready()
    yield found
    found.stop()


def url_of(name: str) -> str:
    kind = "image/png" if name.endswith("png") else "image/jpeg"
    return data_url((FOLDER / "images" / name).read_bytes(), kind)


def part_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a golden message in OpenAI's form."""
    if part["type"] == "image":
        return {"type": "image_url", "image_url": {"url": url_of(part["image"])}}
    return dict(part)


def messages_of(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**message, "content": [part_of(part) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in case["messages"]
    ]


def chat(node: Node, messages: object, tokens: int = 20, **fields: object) -> Reply:
    body = {
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0,
        "return_token_ids": True,
        "ignore_eos": True,
        **fields,
    }
    return ask(node.http_address, "POST", CHAT, body)


def cached(reply: Reply) -> int:
    found: int = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def asked(name: str) -> list[dict[str, Any]]:
    """Return a message about one picture file."""
    return [{"role": "user", "content": [part_of({"type": "image", "image": name}), text("what?")]}]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize("name", CASES)
def test_golden_answers(node: Node, name: str) -> None:
    case = CASES[name]
    reply = chat(node, messages_of(case), len(case["greedy"]), cache_salt=name)
    assert reply.status == 200, reply.body
    assert reply.json["prompt_token_ids"] == case["prompt"]
    assert reply.json["choices"][0]["token_ids"] == case["greedy"]
    assert reply.json["usage"]["prompt_tokens"] == len(case["prompt"])
    assert cached(reply) == 0
