"""Tests of pictures with the engine in a process of its own, and with front workers, over HTTP."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasuki.client.prompt import Prompt, SamplingOptions
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import Reply, ask
from tests.harness.picture_answers import CASES, FOLDER, cached, chat, messages_of, part_of, url_of
from tests.harness.picture_files import data_url, picture_file, png_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running
from tests.harness.waiting import until

pytestmark = needs_goldens

NODES = {
    "apart": ("--engine-process", "process"),
    "workers": ("--front-workers", "2"),
}
TURNS = ("middle", "turn2", "turn3")
"""A chat of three turns with two pictures."""


def launched(name: str, *more: str) -> Node:
    return Node("serve", *flags(FOLDER, arena_mib=16), *HTTP, *NODES[name], *more)


@pytest.fixture(scope="module", params=NODES)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with running(launched(request.param)) as found:
        yield found


def children(pid: int) -> list[int]:
    """Return the process and all below it."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    direct = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [pid, *(below for child in direct for below in children(child))]


def media_of(node: Node) -> list[str]:
    """Return the open blocks of media in all processes of the node."""
    found = []
    for pid in children(node.pid):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(handle)
            except FileNotFoundError:
                continue
            if "tasuki-media" in target:
                found.append(target)
    return found


def assert_no_media(node: Node) -> None:
    until(lambda: not media_of(node), "blocks of pictures stay open")


@pytest.mark.parametrize("name", ["middle", "two", "same", "odd", "big"])
def test_golden_answers(node: Node, name: str) -> None:
    case = CASES[name]
    reply = chat(node, messages_of(case), len(case["greedy"]), cache_salt=name)
    assert reply.status == 200, reply.body
    assert reply.json["prompt_token_ids"] == case["prompt"]
    assert reply.json["choices"][0]["token_ids"] == case["greedy"]
    assert cached(reply) == 0
    assert_no_media(node)


def test_turns_resume_at_exact_turn_ends(node: Node) -> None:
    ended = 0
    for name in TURNS:
        case = CASES[name]
        reply = chat(node, messages_of(case), len(case["greedy"]), cache_salt="turns")
        assert reply.json["choices"][0]["token_ids"] == case["greedy"]
        assert cached(reply) == ended
        ended = len(case["prompt"]) + len(case["greedy"]) - 1
    assert_no_media(node)


def item_of(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "image":
        return {"type": "input_image", "image_url": url_of(part["image"])}
    return {"type": "input_text", "text": part["text"]}


def respond(node: Node, name: str, **fields: object) -> Reply:
    """Ask the last message of a golden chat."""
    parts = CASES[name]["messages"][-1]["content"]
    content = parts if isinstance(parts, str) else [item_of(part) for part in parts]
    tokens = len(CASES[name]["greedy"])
    body = {
        "input": [{"role": "user", "content": content}],
        "max_output_tokens": tokens,
        "temperature": 0,
        **fields,
    }
    return ask(node.http_address, "POST", "/v1/responses", body)


def test_stored_turns_keep_their_pictures_as_long_as_their_tokens(node: Node) -> None:
    """The workers' registry holds the media, and each turn may come to another worker."""
    ended, fields, ids = 0, dict[str, object](), []
    for name in TURNS:
        case = CASES[name]
        reply = respond(node, name, cache_salt="stored", **fields)
        assert reply.status == 200, reply.body
        usage = reply.json["usage"]
        assert usage["input_tokens"] == len(case["prompt"])
        assert usage["input_tokens_details"]["cached_tokens"] == ended
        ended = len(case["prompt"]) + len(case["greedy"]) - 1
        ids.append(reply.json["id"])
        fields = {"previous_response_id": ids[-1]}
    kept = media_of(node)
    # Two turns brought one picture each. A stored one keeps one descriptor a process at most.
    assert len({*kept}) == 2
    whole = chat(node, messages_of(CASES["turn3"]), 20)
    assert len(whole.json["choices"][0]["token_ids"]) == 20
    again = respond(node, "turn2", instructions="be brief", previous_response_id=ids[0])
    assert again.status == 200, again.body
    for response in [*ids, again.json["id"]]:
        assert ask(node.http_address, "DELETE", f"/v1/responses/{response}").status == 200
    assert_no_media(node)


def test_grpc_answers_parts(node: Node) -> None:
    case = CASES["two"]
    shown = [
        (FOLDER / "images" / part["image"]).read_bytes() if "image" in part else part["text"]
        for part in case["messages"][0]["content"]
    ]
    options: SamplingOptions = {"max_new_tokens": len(case["greedy"]), "ignore_eos": True}
    prompt = Prompt(messages=[{"role": "user", "parts": shown}])
    answer = node.client.generate(prompt, cache_salt=b"grpc", **options).result()
    assert [*answer.token_ids] == case["greedy"]
    assert_no_media(node)


REFUSED = {
    # The front refuses the first one, the engine the second.
    "too many pixels": (data_url(png_of(1 << 14, 1 << 14)), (413, "picture_too_large")),
    "cut off": (data_url(picture_file(400, 300)[:-200]), (400, "invalid")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_keep_no_media(node: Node, name: str) -> None:
    url, refusal = REFUSED[name]
    part = {"type": "image_url", "image_url": {"url": url}}
    reply = chat(node, [{"role": "user", "content": [part]}])
    assert reply.refusal == refusal, reply.body
    assert "messages[0].content[0]" in reply.error["message"]
    assert_no_media(node)
