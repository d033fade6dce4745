"""OpenAI's /v1/conversations: conversations, their items, their store, and their routes.

Conversation: items in order, and the exact tokens of its last turn (the prompt of its last
response, and the answer). Immutable values; each change makes a new one. Invariant: the turn's
tokens belong to exactly the first `covered` items.

Items: the items of a conversation, each with an id, a type and parts of content. Pure functions;
any thread. An error names the position of the wrong value.

ConversationStore: conversations among the node's stored responses. It has no memory of its own.
Both share the same limits of number and bytes. Any thread.

Routes: One event loop's thread; items are read on the codec's threads.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import web

from tasuki.server.auth.tenants import RequestContext
from tasuki.server.errors import InvalidField
from tasuki.server.http.access import http_caller, http_request_context
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.reply import send_json
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.request_fields import RequestFields, check_account_fields
from tasuki.server.openapi.responses_fields import (
    MOST_NEW_ITEMS,
    OF_CHANGED_CONVERSATION,
    OF_NEW_CONVERSATION,
    OF_NEW_ITEMS,
)
from tasuki.server.pictures.part_reader import PictureReader
from tasuki.server.text.chat_renderer import MAX_MESSAGES

from .input_items import read_input
from .listed_items import AskedPage, page_of
from .stored_responses import ResponseStore, StoredItems, StoredResponse, StoredTurn, StoredValues

_ENTRY_BYTES = 1500
"""Bytes of memory for a conversation's objects and its entries in the store's tables, without its
items."""
_ITEM_BYTES = 250
"""Bytes of memory for an item's objects, without its body."""


@dataclass(frozen=True, slots=True)
class ConversationItem:
    """An item of a conversation. body: the item as JSON, id included."""

    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation. created_at: seconds since 1970. turn: exact tokens of its last turn;
    None if the next prompt is rendered from the items. covered: number of items contained in the
    turn."""

    id: str
    created_at: int
    metadata: Mapping[str, str]
    items: tuple[ConversationItem, ...] = ()
    turn: StoredTurn | None = None
    covered: int = 0

    @property
    def size(self) -> int:
        """Return the memory of the conversation in bytes."""
        items = sum(_ITEM_BYTES + len(item.body) for item in self.items)
        pairs = sum(map(sys.getsizeof, (*self.metadata, *self.metadata.values())))
        turn = 0 if self.turn is None else self.turn.size
        return _ENTRY_BYTES + items + pairs + turn

    @property
    def picture_bytes(self) -> int:
        """Return the bytes of the turn's picture files."""
        return 0 if self.turn is None else self.turn.pictures.size

    @property
    def uncovered(self) -> list[dict[str, Any]]:
        """Return the items added after the turn, as JSON objects."""
        return [msgspec.json.decode(item.body) for item in self.items[self.covered :]]

    def found(self, item_id: str) -> ConversationItem | None:
        return next((item for item in self.items if item.id == item_id), None)

    def named(self, metadata: Mapping[str, str]) -> "Conversation":
        """Return a copy of the conversation with other metadata."""
        return replace(self, metadata=dict(metadata))

    def with_items(self, items: Sequence[ConversationItem]) -> "Conversation":
        """Return a copy of the conversation with these items added at its end. Raises InvalidField
        if the conversation already has an item's id, or would have more items than a request may
        have."""
        if len(self.items) + len(items) > MAX_MESSAGES:
            raise InvalidField(
                "items", f"would be more than {MAX_MESSAGES} in all: begin another conversation"
            )
        taken = {item.id for item in self.items}
        for item in items:
            if item.id in taken:
                raise InvalidField("items", f"has {item.id!r:.100}, which is there: leave ids out")
        return replace(self, items=(*self.items, *items))

    def answered(
        self, items: Sequence[ConversationItem], turn: StoredTurn | None
    ) -> "Conversation":
        """Return a copy of the conversation with the input and output items of a response added.
        turn: the response's exact tokens, if they cover all items; None: the next prompt is
        rendered from the items."""
        whole = (*self.items, *items)
        covered = 0 if turn is None else len(whole)
        return replace(self, items=whole, turn=turn, covered=covered)

    def without(self, item_id: str) -> "Conversation":
        """Return a copy of the conversation without item `item_id`. It has no turn, so the next
        prompt is rendered from the items."""
        left = tuple(item for item in self.items if item.id != item_id)
        return replace(self, items=left, turn=None, covered=0)


_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}
_REFERENCE = "item_reference"


class _Outputs(msgspec.Struct):
    output: list[msgspec.Raw]


class _Named(msgspec.Struct):
    id: str


def checked_items(
    value: Any, stored: StoredItems, pictures: PictureReader | None
) -> tuple[ConversationItem, ...]:
    """Return a client's list of items as items of a conversation, with new ids. stored: items of
    stored responses, for references by id. pictures: reads those of the items, which stay encoded
    in them; None: refuse them. Raises InvalidField, PromptTooLong."""
    if not isinstance(value, list):
        raise InvalidField("items", "must be a list of items")
    read_input(value, (), stored, "items", pictures)
    return given_items(value, stored)


def given_items(value: Any, stored: StoredItems) -> tuple[ConversationItem, ...]:
    """Return a request's `input` as items of a conversation, with new ids. stored: items of stored
    responses, for references by id. REQUIRES: read_input() accepted the input."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    return tuple(_kept(_resolved(item, stored)) for item in value)


def output_items(body: bytes) -> Iterator[ConversationItem]:
    """Yield the output items of a stored response, with their own ids. body: JSON of the
    response."""
    for raw in msgspec.json.decode(body, type=_Outputs).output:
        item = bytes(raw)
        yield ConversationItem(msgspec.json.decode(item, type=_Named).id, item)


def _resolved(item: dict[str, Any], stored: StoredItems) -> dict[str, Any]:
    if item.get("type") != _REFERENCE:
        return item
    found = stored.get(item["id"])
    assert found is not None, "read_input() found it"
    return found


def _kept(item: dict[str, Any]) -> ConversationItem:
    kind = item.get("type") or "message"
    name = f"{_PREFIXES[kind]}_{uuid4().hex}"
    status = {} if kind in ("reasoning", "compaction") else {"status": "completed"}
    kept = {**status, **item, "id": name, "type": kind}
    if kind == "message":
        kept["content"] = _parts(item)
    return ConversationItem(name, msgspec.json.encode(kept))


def _parts(item: dict[str, Any]) -> Sequence[Any]:
    content = item["content"]
    if not isinstance(content, str):
        parts: Sequence[Any] = content
        return parts
    if item["role"] == "assistant":
        return [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}]
    return [{"type": "input_text", "text": content}]


class ConversationStore:
    def __init__(self, values: StoredValues) -> None:
        self._values = values

    def get(self, context: RequestContext, name: str) -> Conversation:
        """Return the conversation with id `name` stored for the caller. Raises HttpRefusal if there
        is none."""
        found = self._values.find(context, name)
        if not isinstance(found, Conversation):
            raise HttpRefusal(
                404, "conversation_not_found", f"conversation {name!r:.100} is not stored here"
            )
        return found

    def put(self, context: RequestContext, conversation: Conversation) -> None:
        """Store the conversation for the caller, in place of one with the same id. Raises
        HttpRefusal if it exceeds the store's limits; the stored one then stays unchanged."""
        if not self._values.put(context, conversation):
            raise HttpRefusal(
                400,
                "conversation_too_large",
                "the conversation is larger than what this node stores for a caller: begin another "
                "one, or raise --response-store-mib",
            )

    def delete(self, context: RequestContext, name: str) -> None:
        """Delete the conversation with id `name` stored for the caller. Raises HttpRefusal if there
        is none."""
        self.get(context, name)
        self._values.delete(context, name)

    def add_response(
        self,
        context: RequestContext,
        asked: Conversation,
        given: tuple[ConversationItem, ...],
        response: StoredResponse,
    ) -> None:
        """Add the input and output items of a response to its conversation, unless it was deleted.
        If it has changed since `asked`, it keeps no turn. asked: the conversation at the time of
        the request. given: input items."""
        now = self._values.find(context, asked.id)
        if not isinstance(now, Conversation):
            return
        items = (*given, *output_items(response.body))
        # If the conversation has changed meanwhile, the response's tokens are not its tokens.
        turn = response.turn if now is asked else None
        self._values.put(context, now.answered(items, turn))


CONVERSATIONS = "/v1/conversations"
CONVERSATION = f"{CONVERSATIONS}/{{name}}"
ITEMS = f"{CONVERSATION}/items"
ITEM = f"{ITEMS}/{{item}}"


def conversation_routes(model: ServedModel, store: ResponseStore) -> list[web.RouteDef]:
    handlers = ConversationHandlers(model, store)
    return [
        web.post(CONVERSATIONS, handlers.create),
        web.get(CONVERSATION, handlers.retrieve),
        web.post(CONVERSATION, handlers.update),
        web.delete(CONVERSATION, handlers.delete),
        web.post(ITEMS, handlers.add),
        web.get(ITEMS, handlers.listed),
        web.get(ITEM, handlers.item),
        web.delete(ITEM, handlers.delete_item),
    ]


def unserved_conversation_routes() -> list[web.RouteDef]:
    """Return the /v1/conversations routes for a process without stored conversations. Every route
    rejects its requests with status 501."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise HttpRefusal(
            501, "not_served_here", "conversations need a node without --front-workers"
        )

    once = (CONVERSATION, ITEMS, ITEM)
    routes = [web.post(CONVERSATIONS, refuse), web.post(CONVERSATION, refuse)]
    routes += [web.get(path, refuse) for path in once]
    routes += [web.delete(path, refuse) for path in (CONVERSATION, ITEM)]
    return [*routes, web.post(ITEMS, refuse)]


class ConversationHandlers:
    def __init__(self, model: ServedModel, store: ResponseStore) -> None:
        self._model = model
        self._responses = store
        self._store = ConversationStore(store)

    async def create(self, request: web.Request) -> web.StreamResponse:
        stored = StoredItems(self._responses, http_request_context(request))
        read = partial(_read_new, stored, self._model.picture_reader())
        with self._model.hold(request) as hold:
            made = await self._model.read(request, hold, read)
            self._store.put(http_request_context(request), made)
            return await _send(request, made)

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        return await _send(request, self._found(request))

    async def update(self, request: web.Request) -> web.StreamResponse:
        with self._model.hold(request) as hold:
            metadata = await self._model.read(request, hold, _read_metadata)
            changed = self._found(request).named(metadata)
            self._store.put(http_request_context(request), changed)
            return await _send(request, changed)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self._store.delete(http_request_context(request), name)
        return web.json_response({"id": name, "object": "conversation.deleted", "deleted": True})

    async def add(self, request: web.Request) -> web.StreamResponse:
        self._found(request)
        stored = StoredItems(self._responses, http_request_context(request))
        read = partial(_read_added, stored, self._model.picture_reader())
        with self._model.hold(request) as hold:
            items = await self._model.read(request, hold, read)
            changed = self._found(request).with_items(items)
            self._store.put(http_request_context(request), changed)
            page = AskedPage(MOST_NEW_ITEMS, None, newest_first=False)
            return await send_json(request, _page(changed.id, items, page))

    async def listed(self, request: web.Request) -> web.StreamResponse:
        found, page = self._found(request), AskedPage.of(request.query)
        body = _page(found.id, found.items, page)
        with self._model.held.hold(http_caller(request), len(body)):
            return await send_json(request, body)

    async def item(self, request: web.Request) -> web.StreamResponse:
        found = self._found(request).found(request.match_info["item"])
        if found is None:
            raise _no_item(request)
        with self._model.held.hold(http_caller(request), len(found.body)):
            return await send_json(request, found.body)

    async def delete_item(self, request: web.Request) -> web.StreamResponse:
        found, name = self._found(request), request.match_info["item"]
        if found.found(name) is None:
            raise _no_item(request)
        changed = found.without(name)
        self._store.put(http_request_context(request), changed)
        return await _send(request, changed)

    def _found(self, request: web.Request) -> Conversation:
        return self._store.get(http_request_context(request), request.match_info["name"])


def _read_new(
    stored: StoredItems, pictures: PictureReader | None, fields: RequestFields
) -> Conversation:
    """Return a new conversation from the request's `items` and `metadata`. Raises InvalidField,
    PromptTooLong."""
    fields.refuse_unknown(OF_NEW_CONVERSATION)
    items = () if fields.get("items") is None else _read_items(stored, pictures, fields)
    metadata = _metadata(fields)
    return Conversation(f"conv_{uuid4().hex}", int(time.time()), metadata, items)


def _read_added(
    stored: StoredItems, pictures: PictureReader | None, fields: RequestFields
) -> tuple[ConversationItem, ...]:
    """Return the items to add to a conversation, with new ids. Raises InvalidField,
    PromptTooLong."""
    fields.refuse_unknown(OF_NEW_ITEMS)
    return _read_items(stored, pictures, fields)


def _read_items(
    stored: StoredItems, pictures: PictureReader | None, fields: RequestFields
) -> tuple[ConversationItem, ...]:
    """Return the items of the request's field `items`, with new ids. Raises InvalidField,
    PromptTooLong."""
    given = fields.items("items")
    if len(given) > MOST_NEW_ITEMS:
        raise InvalidField("items", f"has {len(given)}: send at most {MOST_NEW_ITEMS} at once")
    return checked_items(fields.get("items"), stored, pictures)


def _read_metadata(fields: RequestFields) -> dict[str, str]:
    """Return the new `metadata` of a conversation from the request. Raises InvalidField."""
    fields.refuse_unknown(OF_CHANGED_CONVERSATION)
    return _metadata(fields)


def _metadata(fields: RequestFields) -> dict[str, str]:
    check_account_fields(fields)
    return fields.items_by_name("metadata")


def _page(name: str, items: tuple[ConversationItem, ...], page: AskedPage) -> bytes:
    listed = [(item.id, item.body) for item in items]
    return page_of(name, listed, page)


async def _send(request: web.Request, conversation: Conversation) -> web.StreamResponse:
    shown = {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": conversation.metadata,
    }
    return await send_json(request, msgspec.json.encode(shown))


def _no_item(request: web.Request) -> HttpRefusal:
    name = request.match_info["item"]
    return HttpRefusal(404, "item_not_found", f"item {name!r:.100} is not in this conversation")
