"""GET /v1/responses/ID/input_items: pages of the input items of a stored response.

The items are made from the messages of the stored conversation, earlier turns included. A message
is one item even if the client sent it in parts. Tool calls get new ids. Pure functions; any thread.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.server.errors import InvalidField
from tasuki.server.text.chat_message import ChatMessage

from .stored_responses import StoredResponse, item_id

Item = dict[str, Any]

_DEFAULT = 20
_MOST = 100


@dataclass(frozen=True)
class AskedPage:
    """The page of a list requested by a client. limit: largest number of items. after: id of the
    item before the page; None: the first page. newest_first: True for the newest item first."""

    limit: int
    after: str | None
    newest_first: bool

    @staticmethod
    def of(query: Mapping[str, str]) -> "AskedPage":
        """Return the page requested by a query's fields `limit` (default: 20), `order` (default:
        desc) and `after`. Raises InvalidField."""
        limit = query.get("limit", str(_DEFAULT))
        is_short = limit.isascii() and limit.isdigit() and len(limit) <= len(str(_MOST))
        if not is_short or not 1 <= int(limit) <= _MOST:
            raise InvalidField("limit", f"must be in [1, {_MOST}], not {limit:.20}")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidField("order", f"must be asc or desc, not {order:.20}")
        return AskedPage(int(limit), query.get("after"), order == "desc")


def listed_items(response: StoredResponse, page: AskedPage) -> bytes:
    """Return a page of the response's input items as JSON. Raises InvalidField for an unknown
    `page.after`, and for a turn with pictures."""
    if response.turn.pictures.sent:
        raise InvalidField(
            "input_items", "has pictures, which are not listed as yet: keep them with the client"
        )
    # The last message is the answer.
    messages = response.turn.messages()[:-1]
    items = _items(response.id, messages)
    listed = [
        (item["id"], json.dumps(item, ensure_ascii=False).encode(errors="replace"))
        for item in items
    ]
    return page_of(response.id, listed, page)


def page_of(owner: str, items: Sequence[tuple[str, bytes]], page: AskedPage) -> bytes:
    """Return a page of a list of items as JSON. owner: id of the response or conversation with the
    items, for errors. items: pairs of an id and a JSON body, oldest first. Raises InvalidField if
    `page.after` is no item of the list."""
    listed = items[::-1] if page.newest_first else items
    first = 0
    if page.after is not None:
        places = {name: place for place, (name, _) in enumerate(listed)}
        if page.after not in places:
            raise InvalidField("after", f"{page.after!r:.100} is no item of {owner}")
        first = places[page.after] + 1
    shown = listed[first : first + page.limit]
    body = {
        "object": "list",
        "data": [msgspec.Raw(content) for _, content in shown],
        "first_id": shown[0][0] if shown else None,
        "last_id": shown[-1][0] if shown else None,
        "has_more": first + len(shown) < len(listed),
    }
    return msgspec.json.encode(body)


def _items(response_id: str, messages: Sequence[ChatMessage]) -> list[Item]:
    calls: deque[str] = deque()
    items: list[Item] = []
    for message in messages:
        for kind, item in _of_message(message):
            if kind == "fc":
                calls.append(f"{item_id('call', response_id, len(items))}_in")
                item["call_id"] = calls[-1]
            elif kind == "fco":
                # Templates match calls and outputs by their order alone.
                item["call_id"] = calls.popleft() if calls else ""
            items.append({"id": f"{item_id(kind, response_id, len(items))}_in", **item})
    return items


def _of_message(message: ChatMessage) -> Iterator[tuple[str, Item]]:
    """Yield the items made from one message, without ids. Each comes with the prefix of its id,
    such as "msg"."""
    if message.role == "tool":
        yield "fco", {**_completed("function_call_output"), "output": message.content}
        return
    if message.reasoning:
        part = {"type": "reasoning_text", "text": message.reasoning}
        yield "rs", {"type": "reasoning", "summary": [], "content": [part]}
    if message.content or message.role != "assistant":
        yield "msg", {**_completed("message"), "role": message.role, "content": [_part(message)]}
    for call in message.tool_calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        yield "fc", {**_completed("function_call"), "name": call.name, "arguments": arguments}


def _part(message: ChatMessage) -> Item:
    if message.role == "assistant":
        return {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": message.content}


def _completed(kind: str) -> Item:
    return {"type": kind, "status": "completed"}
