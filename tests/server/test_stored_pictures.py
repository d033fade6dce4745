"""Tests of pictures in stored responses and conversations: listed, summarised, computed ahead."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.harness.daemons import Node, flags
from tests.harness.http_calls import ask
from tests.harness.picture_answers import (
    CASES,
    FOLDER,
    cached,
    chat,
    frame_files,
    messages_of,
    url_of,
)
from tests.harness.picture_files import data_url
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running
from tests.server.test_picture_turns import items_of, respond, session, text_of

pytestmark = needs_goldens
URLS = "include=message.input_image.image_url"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP)) as found:
        yield found


def listed(node: Node, name: str, query: str = "") -> list[dict[str, Any]]:
    path = f"/v1/responses/{name}/input_items?order=asc&{query}"
    reply = ask(node.http_address, "GET", path)
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = reply.json["data"]
    return found


def content_of(name: str) -> list[dict[str, Any]]:
    (only,) = items_of(name)
    parts: list[dict[str, Any]] = only["content"]
    return parts


def as_sent(part: dict[str, Any]) -> dict[str, Any]:
    """Return a listed part without the fields that a client may leave out."""
    return {name: part[name] for name in ("type", "text", "image_url") if name in part}


def test_items_are_listed_with_their_pictures_as_sent(node: Node) -> None:
    turns = session(node, "previous_response_id")
    items = listed(node, turns[-1].json["id"], URLS)
    asked = [item for item in items if item["role"] == "user"]
    for item, name in zip(asked, ("middle", "turn2", "turn3"), strict=True):
        assert [as_sent(part) for part in item["content"]] == content_of(name)
    without = listed(node, turns[-1].json["id"])
    pictures = [part for item in without for part in item["content"] if "image_url" in part]
    assert len(pictures) == 2 and all(part["image_url"] is None for part in pictures)
    assert [item["id"] for item in without] == [item["id"] for item in items]
    # The listed items are an input again, of the same tokens.
    again = respond(node, items, store=False, cache_salt="previous_response_id")
    assert text_of(again) == text_of(turns[-1])


def test_a_page_has_the_bytes_of_its_own_items_alone(node: Node) -> None:
    turns = session(node, "previous_response_id")
    path = f"/v1/responses/{turns[-1].json['id']}/input_items?{URLS}&limit=1"
    page = ask(node.http_address, "GET", path)
    assert page.json["has_more"] and len(page.body) < len(url_of("photo.jpg"))
    wrong = ask(node.http_address, "GET", path.replace("image_url", "odd"))
    assert wrong.refusal == (400, "invalid") and "include" in wrong.error["message"]


def test_an_output_of_a_function_is_listed_with_its_picture(node: Node) -> None:
    output = [{"type": "input_image", "image_url": url_of("a.png")}]
    items = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": output},
    ]
    first = respond(node, items)
    found = listed(node, first.json["id"], URLS)[-1]
    assert found["type"] == "function_call_output"
    assert [as_sent(part) for part in found["output"]] == output


def test_added_items_show_their_pictures(node: Node) -> None:
    begun = ask(node.http_address, "POST", "/v1/conversations", {"items": items_of("middle")})
    assert begun.status == 200, begun.body
    name = begun.json["id"]
    answer = respond(node, "what?", conversation=name)
    question = {"role": "user", "content": "what?"}
    whole = chat(node, [*messages_of(CASES["middle"]), question])
    assert text_of(answer) == whole.json["choices"][0]["message"]["content"]
    added = ask(
        *(node.http_address, "POST", f"/v1/conversations/{name}/items"),
        {"items": items_of("turn2")},
    )
    assert added.status == 200, added.body
    again = respond(node, "and?", conversation=name)
    assert again.status == 200 and again.json["usage"]["input_tokens_details"]["image_tokens"] > 12
    broken = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    refused = ask(node.http_address, "POST", "/v1/conversations", {"items": broken})
    assert refused.refusal == (400, "invalid")
    assert "items[0].content[0]" in refused.error["message"]


def test_a_conversation_with_pictures_is_compacted(node: Node) -> None:
    """The summary's prompt resumes from the turn, and the kept messages keep their pictures."""
    salt = {"cache_salt": "compacted"}
    first = respond(node, items_of("middle"), **salt)
    asked = {"previous_response_id": first.json["id"], **salt}
    reply = ask(node.http_address, "POST", "/v1/responses/compact", asked)
    assert reply.status == 200, reply.body
    usage = reply.json["usage"]["input_tokens_details"]
    # The turn's end, but for the last sampled token.
    case = CASES["middle"]
    assert usage["cached_tokens"] == len(case["prompt"]) + len(case["greedy"]) - 1
    assert usage["image_tokens"] == 12
    kept, summary = reply.json["output"]
    assert [as_sent(part) for part in kept["content"]] == content_of("middle")
    assert summary["type"] == "compaction"
    onward = respond(node, [kept, summary, {"role": "user", "content": "and?"}], store=False)
    assert onward.json["usage"]["input_tokens_details"]["image_tokens"] == 12


def test_a_compaction_too_long_drops_old_messages_with_their_pictures(node: Node) -> None:
    long = {"role": "user", "content": [*content_of("middle"), words("w" * 3000)]}
    items = [long, *items_of("turn2")]
    reply = ask(node.http_address, "POST", "/v1/responses/compact", {"input": items})
    assert reply.status == 200, reply.body
    kept = [item for item in reply.json["output"] if item["type"] == "message"]
    assert [as_sent(part) for part in kept[-1]["content"]] == content_of("turn2")
    alone = respond(node, items_of("turn2"), store=False).json["usage"]["input_tokens_details"]
    shown = reply.json["usage"]["input_tokens_details"]["image_tokens"]
    assert shown == alone["image_tokens"]


def test_a_stored_video_goes_on_and_is_not_listed_or_compacted(node: Node) -> None:
    """Refused by type, with the place of the video in its own request."""
    frames = [data_url(file.read_bytes()) for file in frame_files("clip")]
    content = [{"type": "video", "video": frames, "fps": 2}, words("what?")]
    first = respond(node, [{"role": "user", "content": content}])
    assert first.status == 200, first.body
    name = first.json["id"]
    onward = respond(node, "and?", previous_response_id=name)
    assert onward.json["usage"]["input_tokens_details"]["video_tokens"] > 0
    path = f"/v1/responses/{name}/input_items"
    compact = {"previous_response_id": name}
    for refused in (
        ask(node.http_address, "GET", path),
        ask(node.http_address, "POST", "/v1/responses/compact", compact),
    ):
        assert refused.refusal == (400, "invalid"), refused.body
        assert "input[0].content[0].video[0] is of a video" in refused.error["message"]


def words(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


def test_a_warm_up_computes_pictures_ahead(node: Node) -> None:
    warm = {"type": "response.create", "generate": False, "input": items_of("middle")}
    fields = {"prompt_cache_key": "warm", "temperature": 0}
    ended = asyncio.run(sent_over_socket(node, {**warm, **fields}))
    assert ended["type"] == "response.completed", ended
    question = {"role": "user", "content": [*items_of("turn3")[0]["content"]]}
    reply = chat(node, [*messages_of(CASES["middle"]), question], cache_salt="")
    middle = CASES["middle"]["prompt"]
    assert cached(reply) >= len(middle) // 64 * 64 > 0
    details = reply.json["usage"]["prompt_tokens_details"]
    assert details["image_tokens"] == 12


async def sent_over_socket(node: Node, message: dict[str, Any]) -> dict[str, Any]:
    """Send a message over a WebSocket of responses. Return the last event."""
    url = f"http://{node.http_address}/v1/responses"
    async with ClientSession() as client, client.ws_connect(url) as socket:
        await socket.send_json(message)
        while True:
            event: dict[str, Any] = json.loads((await socket.receive(60)).data)
            if event["type"] in ("response.completed", "response.failed", "error"):
                return event
