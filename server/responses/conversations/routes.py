"""OpenAI's /v1/conversations, as routes.

One event loop's thread; items are read on the codec's threads.
"""

import time
from functools import partial
from uuid import uuid4

import msgspec
from aiohttp import web

from tasuki.server.errors import InvalidField
from tasuki.server.fields.response_items import MOST_NEW_ITEMS
from tasuki.server.fields.responses import (
    OF_CHANGED_CONVERSATION,
    OF_NEW_CONVERSATION,
    OF_NEW_ITEMS,
)
from tasuki.server.http.auth import http_caller, http_request_context
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.json_reply import send_json
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.request_fields import RequestFields, check_account_fields
from tasuki.server.responses.listed_items import AskedPage, page_of
from tasuki.server.responses.stored_items import StoredItems
from tasuki.server.responses.stored_responses import ResponseStore

from .conversation import Conversation, ConversationItem
from .conversation_items import checked_items
from .conversation_store import ConversationStore

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
    """Of a process that another one keeps stored values for."""

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
        read = partial(_read_new, StoredItems(self._responses, http_request_context(request)))
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
        read = partial(_read_added, StoredItems(self._responses, http_request_context(request)))
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


def _read_new(stored: StoredItems, fields: RequestFields) -> Conversation:
    """Raises InvalidField, PromptTooLong."""
    fields.refuse_unknown(OF_NEW_CONVERSATION)
    items = () if fields.get("items") is None else _read_items(stored, fields)
    metadata = _metadata(fields)
    return Conversation(f"conv_{uuid4().hex}", int(time.time()), metadata, items)


def _read_added(stored: StoredItems, fields: RequestFields) -> tuple[ConversationItem, ...]:
    """Raises InvalidField, PromptTooLong."""
    fields.refuse_unknown(OF_NEW_ITEMS)
    return _read_items(stored, fields)


def _read_items(stored: StoredItems, fields: RequestFields) -> tuple[ConversationItem, ...]:
    """Raises InvalidField, PromptTooLong."""
    given = fields.items("items")
    if len(given) > MOST_NEW_ITEMS:
        raise InvalidField("items", f"has {len(given)}: send at most {MOST_NEW_ITEMS} at once")
    return checked_items(fields.get("items"), stored)


def _read_metadata(fields: RequestFields) -> dict[str, str]:
    """Raises InvalidField."""
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
