"""GET /v1/responses/ID/input_items: pages of the input items of a stored response.

The items are made from the messages of the stored conversation, earlier turns included. A message
is one item even if the client sent its texts in parts. Tool calls get new ids. Pure functions; any
thread.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from tasuki.server.errors import InvalidField
from tasuki.server.pictures.sent_picture import SentPicture
from tasuki.server.text.chat_message import ChatMessage

from .listed_pictures import input_parts, pictures_of
from .stored_responses import StoredResponse, item_id

Item = dict[str, Any]

Value = TypeVar("Value")

_CONTENT = {"message": "content", "function_call_output": "output"}
"""Name of an item's field with pictures, by type."""
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


def listed_items(response: StoredResponse, page: AskedPage, *, urls: bool) -> bytes:
    """Return a page of the response's input items as JSON. urls: show the bytes of pictures. Raises
    InvalidField for an unknown `page.after`."""
    # The last message is the answer.
    messages = response.turn.messages()[:-1]
    shown = pictures_of(messages, response.turn.pictures.sent)
    # Without bytes: only those of the page are encoded.
    items = [
        _Listed(item, messages[place], shown[place])
        for place, item in _items(response.id, messages)
    ]
    found, more = chosen(response.id, [(one.item["id"], one) for one in items], page)
    return page_body([(one.item["id"], one.body(urls=urls)) for one in found], has_more=more)


@dataclass(frozen=True)
class _Listed:
    """An item without the content of its pictures. message: it was made from."""

    item: Item
    message: ChatMessage
    pictures: tuple[SentPicture, ...]

    def body(self, *, urls: bool) -> bytes:
        """Return the item as JSON."""
        item = self.item
        if self.pictures and item["type"] in _CONTENT:
            parts = [*input_parts(self.message, self.pictures, urls=urls)]
            item = {**item, _CONTENT[item["type"]]: parts}
        return json.dumps(item, ensure_ascii=False).encode(errors="replace")


def page_of(owner: str, items: Sequence[tuple[str, bytes]], page: AskedPage) -> bytes:
    """Return a page of a list of items as JSON. items: pairs of an id and a JSON body. The other
    arguments are those of chosen()."""
    pairs = [(name, (name, body)) for name, body in items]
    found, more = chosen(owner, pairs, page)
    return page_body(found, has_more=more)


def chosen(
    owner: str, items: Sequence[tuple[str, Value]], page: AskedPage
) -> tuple[Sequence[Value], bool]:
    """Return the values of a page, and True if more follow. owner: id of the response or
    conversation with the items, for errors. items: pairs of an id and a value, oldest first. Raises
    InvalidField if `page.after` is no item of the list."""
    listed = items[::-1] if page.newest_first else items
    first = 0
    if page.after is not None:
        places = {name: place for place, (name, _) in enumerate(listed)}
        if page.after not in places:
            raise InvalidField("after", f"{page.after!r:.100} is no item of {owner}")
        first = places[page.after] + 1
    shown = listed[first : first + page.limit]
    return [value for _, value in shown], first + len(shown) < len(listed)


def page_body(shown: Sequence[tuple[str, bytes]], *, has_more: bool) -> bytes:
    """Return the JSON of a page. shown: pairs of an id and a JSON body."""
    body = {
        "object": "list",
        "data": [msgspec.Raw(content) for _, content in shown],
        "first_id": shown[0][0] if shown else None,
        "last_id": shown[-1][0] if shown else None,
        "has_more": has_more,
    }
    return msgspec.json.encode(body)


def _items(response_id: str, messages: Sequence[ChatMessage]) -> list[tuple[int, Item]]:
    """Return the items of the messages, each with the index of its message. Pictures are missing in
    them."""
    calls: deque[str] = deque()
    items: list[tuple[int, Item]] = []
    for place, message in enumerate(messages):
        for kind, item in _of_message(message):
            if kind == "fc":
                calls.append(f"{item_id('call', response_id, len(items))}_in")
                item["call_id"] = calls[-1]
            elif kind == "fco":
                # Templates match calls and outputs by their order alone.
                item["call_id"] = calls.popleft() if calls else ""
            named = {"id": f"{item_id(kind, response_id, len(items))}_in", **item}
            items.append((place, named))
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
