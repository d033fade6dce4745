"""The dashboard over HTTP: the page at `/`, its data under `/debug`, a stream of changes.

Reads a history, and queries the tree. One event loop's thread. Invariant: no request blocks the
engine: views are made of the history alone; a request for the tree is one query.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from tasuki.dashboard.health import AskStanding, Standing
from tasuki.dashboard.history import views
from tasuki.dashboard.history.node_history import NodeHistory
from tasuki.dashboard.page_files import INDEX, PageFile
from tasuki.server.auth.limits import ConcurrencyCaps
from tasuki.server.errors import WatcherLimit
from tasuki.utils.signatures import Clock

from .access import http_caller
from .errors import HttpRefusal

_STREAM_SECONDS = 1.0
_MOST_QUIET = 5
"""Longest time in seconds without an overview in a stream. After a longer silence, a reader may
consider the stream lost."""
_SPAN_SECONDS = (10, 3600)
_POINTS = (10, 600)
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}

TreeSource = Callable[[str | None], Awaitable[list[dict[str, Any]]]]


@dataclass(frozen=True)
class DashboardSource:
    """The data shown by a dashboard page. history: the node's history. now: returns the end of the
    history, in seconds since 1970. tree: returns the radix tree's nodes below the named node, or
    below the root for None. The field is None for a recording, because it has no tree. about: facts
    about the history's node. recording_blocks: context held while prompts' blocks are recorded.
    standing: returns the node's own current state."""

    history: NodeHistory
    now: Clock
    tree: TreeSource | None
    about: dict[str, str]
    recording_blocks: Callable[[], AbstractContextManager[None]] = nullcontext
    standing: AskStanding = Standing


class DashboardHandlers:
    def __init__(
        self,
        source: DashboardSource,
        page: dict[str, PageFile],
        watchers: ConcurrencyCaps | None = None,
    ) -> None:
        """Set up the dashboard. page: files of the page. watchers: caps on the number of streams at
        a time; None: no cap."""
        self._watchers = watchers or ConcurrencyCaps(WatcherLimit, "streams of events", 0)
        self._source = source
        self._history = source.history
        self._page = page

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._index),
            web.get("/page/{name:.+}", self._file),
            web.get("/debug/overview", self._overview),
            web.get("/debug/stream", self._counted(self._stream)),
            web.get("/debug/events", self._counted(self._events)),
            web.get("/debug/requests", self._listed(views.requests)),
            web.get("/debug/requests/{name}", self._request),
            web.get("/debug/sessions", self._listed(views.sessions)),
            web.get("/debug/handovers", self._listed(views.handovers)),
            web.get("/debug/evictions", self._listed(views.evictions)),
            web.get("/debug/faults", self._listed(views.faults)),
            web.get("/debug/tree", self._tree),
        ]

    async def _index(self, request: web.Request) -> web.Response:
        return page_file(self._page, INDEX)

    async def _file(self, request: web.Request) -> web.Response:
        return page_file(self._page, request.match_info["name"])

    def _listed(self, view: Callable[[NodeHistory], Any]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return web.json_response(view(self._history))

        return handle

    def _counted(self, stream: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            with self._watchers.held(http_caller(request)):
                return await stream(request)

        return handle

    async def _request(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        record = self._history.requests.find(name)
        if record is None:
            raise HttpRefusal(
                404, "not_found", f"request {name!r} is not among the last that ended"
            )
        return web.json_response(record)

    async def _overview(self, request: web.Request) -> web.Response:
        return web.json_response(self._summary(*_span(request)))

    def _summary(self, seconds: int, points: int) -> dict[str, Any]:
        now, standing = self._source.now(), self._source.standing()
        overview = views.overview(self._history, now, seconds, points, standing)
        return {"about": self._source.about, **overview}

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send the overview now and after every event, at most once a second. Without events it is
        sent every _MOST_QUIET seconds, as a sign of life."""
        seconds, points = _span(request)
        reply = await _open_stream(request)
        seen, quiet = -1, 0
        while True:
            end = self._history.journal.end
            quiet += 1
            if end != seen or quiet >= _MOST_QUIET:
                seen, quiet = end, 0
                await _write(reply, self._summary(seconds, points))
            await asyncio.sleep(_STREAM_SECONDS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send events one by one to a recorder, from number `after` on, or from now. Dropped events
        are left out. blocks=1: later submit events name the prompts' blocks."""
        number = _number(request, "after", self._history.journal.end, 0, 1 << 62)
        blocks = _number(request, "blocks", 0, 0, 1)
        reply = await _open_stream(request)
        with self._source.recording_blocks() if blocks else nullcontext():
            while True:
                fresh = self._history.journal.since(number)
                number = fresh.next
                for event in fresh.events:
                    await _write(reply, event)
                await asyncio.sleep(_STREAM_SECONDS / 4)

    async def _tree(self, request: web.Request) -> web.Response:
        if self._source.tree is None:
            raise HttpRefusal(404, "not_found", "a recording holds no tree: ask a running node")
        return web.json_response(await self._source.tree(request.query.get("under")))


def page_file(page: dict[str, PageFile], name: str) -> web.Response:
    """Return a file of the page as a response, with headers against foreign scripts. name: the
    file's path in the page's folder. Raises HttpRefusal for an unknown file."""
    file = page.get(name)
    if file is None:
        raise HttpRefusal(404, "not_found", f"the page has no file {name!r}")
    headers = {**_PAGE_HEADERS, "Content-Type": file.content_type}
    return web.Response(body=file.content, headers=headers)


def _span(request: web.Request) -> tuple[int, int]:
    seconds = _number(request, "seconds", 300, *_SPAN_SECONDS)
    return seconds, _number(request, "points", 150, *_POINTS)


def _number(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query.get(name, str(default))
    is_short = text.isascii() and text.isdecimal() and len(text) < 20
    if not is_short or not least <= int(text) <= most:
        raise HttpRefusal(400, "invalid", f"{name} must be a number from {least} to {most}")
    return int(text)


async def _open_stream(request: web.Request) -> web.StreamResponse:
    reply = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    await reply.prepare(request)
    return reply


async def _write(reply: web.StreamResponse, value: Any) -> None:
    await reply.write(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")
