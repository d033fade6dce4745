"""Tests of pictures with the engine in a process of its own, and with front workers, over HTTP."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from tasuki.client.prompt import Prompt, SamplingOptions
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import Reply, ask
from tests.harness.metrics_text import scraped
from tests.harness.picture_answers import CASES, CHAT, FOLDER, cached, chat, messages_of, url_of
from tests.harness.picture_files import data_url, picture_file, png_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running
from tests.harness.waiting import until

pytestmark = needs_goldens

NODES = {
    "apart": ("--engine-process", "process"),
    "workers": ("--front-workers", "2"),
}
JSON = "application/json"
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
    with suppress(FileNotFoundError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        direct = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        return [pid, *(below for child in direct for below in children(child))]
    return []


def media_of(node: Node) -> list[str]:
    """Return the open blocks of media in all processes of the node."""
    found = []
    for pid in children(node.pid):
        with suppress(FileNotFoundError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    found.append(os.readlink(handle))
    return [target for target in found if "tasuki-media" in target]


def assert_no_media(node: Node) -> None:
    until(lambda: not media_of(node), "blocks of pictures stay open", 30.0)


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
    items = f"/v1/responses/{ids[0]}/input_items?include=message.input_image.image_url"
    listed = ask(node.http_address, "GET", items)
    assert listed.json["data"][0]["content"][1]["image_url"] == url_of("a.png")
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
    # The reader refuses the first one, the front the second, the engine the third.
    "no base64": ("data:image/png,abc", (400, "invalid")),
    "too many pixels": (data_url(png_of(1 << 14, 1 << 14)), (413, "picture_too_large")),
    "cut off": (data_url(picture_file(400, 300)[:-200]), (400, "invalid")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_keep_no_media(node: Node, name: str) -> None:
    url, refusal = REFUSED[name]
    before = refused_by(node)
    part = {"type": "image_url", "image_url": {"url": url}}
    reply = chat(node, [{"role": "user", "content": [part]}])
    assert reply.refusal == refusal, reply.body
    assert "messages[0].content[0]" in reply.error["message"]
    assert_no_media(node)
    # A front worker reports its counts a moment later.
    until(lambda: refused_by(node) == before + 1, lambda: f"not {before + 1} refused")


def refused_by(node: Node) -> float:
    return scraped(node.http_address)["tasuki_pictures_total{outcome=refused}"]


def slow_question(salt: str) -> dict[str, Any]:
    """Return the body of a chat about a picture of 0.9 MiB in base64, with a long answer."""
    file = picture_file(560, 420, compress_level=0)
    picture = {"type": "image_url", "image_url": {"url": data_url(file)}}
    words = {"type": "text", "text": salt * 40}
    return {
        "messages": [{"role": "user", "content": [words, picture]}],
        "max_tokens": 300,
        "ignore_eos": True,
        "cache_salt": salt,
        "stream": True,
    }


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1, 0.4])
def test_clients_that_leave_keep_no_media(node: Node, seconds: float) -> None:
    """They leave while the picture is read, decoded or encoded, or while the answer is written."""
    for turn in range(3):
        host, port = node.http_address.split(":")
        connection = HTTPConnection(host, int(port), timeout=30)
        connection.request(
            "POST", CHAT, json.dumps(slow_question(f"{seconds}-{turn}")), {"content-type": JSON}
        )
        time.sleep(seconds)
        connection.sock.close()
        connection.close()
    assert_no_media(node)
    assert chat(node, messages_of(CASES["middle"]), 20).status == 200


def asked_aside(node: Node, salt: str) -> "tuple[threading.Thread, list[Reply]]":
    """Ask a slow question on another thread. Return the thread and the list of its reply, empty if
    its connection was lost."""
    replies: list[Reply] = []
    body = {**slow_question(salt), "stream": False}

    def run() -> None:
        with suppress(OSError, HTTPException):
            replies.append(ask(node.http_address, "POST", CHAT, body))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: bool(media_of(node)), "the picture did not come in")
    return thread, replies


def process_of(node: Node, module: str) -> list[int]:
    """Return the processes of the node that run a module."""
    return [
        pid
        for pid in children(node.pid)
        if module in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    ]


@pytest.mark.parametrize("name", NODES)
def test_a_killed_engine_ends_requests_with_pictures(name: str) -> None:
    node = launched(name).wait_ready()
    try:
        thread, replies = asked_aside(node, "killed")
        (engine,) = process_of(node, "engine_main")
        os.kill(engine, signal.SIGKILL)
        thread.join(60)
        assert not thread.is_alive()
        assert replies[0].status == 500 and "SIGKILL" in replies[0].error["message"]
        until(lambda: node.exit_status is not None, "the node outlives its engine")
    finally:
        node.stop()
    assert node.exit_status == 1


def test_a_killed_worker_frees_its_pictures() -> None:
    with running(launched("workers")) as node:
        thread, _ = asked_aside(node, "worker")
        for worker in process_of(node, "worker_main"):
            os.kill(worker, signal.SIGKILL)
        assert_no_media(node)
        until(lambda: len(process_of(node, "worker_main")) == 2, "no worker was started again")
        until(lambda: answers(node), "the new workers do not answer")
        thread.join(30)
        assert not thread.is_alive()


def answers(node: Node) -> bool:
    try:
        reply = chat(node, messages_of(CASES["middle"]), 20)
    except OSError:
        return False
    golden: list[int] = CASES["middle"]["greedy"]
    return reply.status == 200 and reply.json["choices"][0]["token_ids"] == golden


def test_pictures_beyond_the_budget_are_refused() -> None:
    with running(launched("workers", "--picture-media-mib", "1")) as node:
        thread, replies = asked_aside(node, "budget")
        body = {**slow_question("other"), "stream": False}
        refused = ask(node.http_address, "POST", CHAT, body)
        assert refused.refusal == (429, "media_limit"), refused.body
        thread.join(60)
        assert replies[0].status == 200
        assert_no_media(node)
        assert ask(node.http_address, "POST", CHAT, body).status == 200
        part = slow_question("")["messages"][0]["content"][1]
        body["messages"] = [{"role": "user", "content": [part, part]}]
        refused = ask(node.http_address, "POST", CHAT, body)
        assert refused.refusal == (400, "invalid") and "one may hold 1.0 MiB" in str(refused.body)


def test_a_session_keeps_its_pictures(node: Node) -> None:
    """The workers' registry holds its log, and each turn may come to another worker."""
    with node.client.open_session(b"session") as session:
        for name in TURNS:
            case = CASES[name]
            content = case["messages"][-1]["content"]
            shown = [content] if isinstance(content, str) else map(part_shown, content)
            session.append(Prompt(messages=[{"role": "user", "parts": [*shown]}]))
            options: SamplingOptions = {"max_new_tokens": len(case["greedy"]), "ignore_eos": True}
            answer = session.generate(**options).result()
            assert [*answer.token_ids] == case["greedy"]
        assert media_of(node)
    assert_no_media(node)


def part_shown(part: dict[str, Any]) -> str | bytes:
    """Return a part of a golden message in the form of the Python client."""
    return (FOLDER / "images" / part["image"]).read_bytes() if "image" in part else part["text"]
