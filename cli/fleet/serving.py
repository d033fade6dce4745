"""The fleet page's process: its HTTP server, its poller, and shutdown.

Serves the fleet's page over HTTP, and its data below /fleet. Used on one event loop's thread.
"""

import asyncio
import time
from contextlib import aclosing

from aiohttp import web

from tasuki.dashboard.fleet.fleet import MOST_ROWS, ORDERS, Fleet
from tasuki.dashboard.page_files import PageFile, load_page
from tasuki.server.daemon.shutdown import StopRequest
from tasuki.server.http.dashboard import page_file
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.server import start_http_server

from .config import FleetConfig
from .node_poll import NodePoll

FLEET_INDEX = "fleet/index.html"
_LONGEST_FILTER = 200
_FURTHEST = 100_000


class FleetHandlers:
    def __init__(self, fleet: Fleet, page: dict[str, PageFile], scheme: str) -> None:
        """Set up the page's routes. scheme: http or https, used in links to each node's own
        page."""
        self._fleet = fleet
        self._page = page
        self._scheme = scheme

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._index),
            web.get("/page/{name:.+}", self._file),
            web.get("/fleet/summary", self._summary),
            web.get("/fleet/nodes", self._nodes),
            web.get("/fleet/links", self._links),
            web.get("/fleet/callers", self._callers),
        ]

    async def _index(self, request: web.Request) -> web.Response:
        return page_file(self._page, FLEET_INDEX)

    async def _file(self, request: web.Request) -> web.Response:
        return page_file(self._page, request.match_info["name"])

    async def _summary(self, request: web.Request) -> web.Response:
        return web.json_response({"scheme": self._scheme, **self._fleet.summary(time.time())})

    async def _nodes(self, request: web.Request) -> web.Response:
        order = request.query.get("sort", "trouble")
        if order not in ORDERS:
            raise HttpRefusal(400, "invalid", f"sort must be one of {', '.join(ORDERS)}")
        offset = _number(request, "offset", 0, _FURTHEST)
        count = _number(request, "count", 50, MOST_ROWS)
        return web.json_response(self._fleet.nodes(_filter(request), order, offset, count))

    async def _links(self, request: web.Request) -> web.Response:
        return web.json_response(self._fleet.links(_filter(request)))

    async def _callers(self, request: web.Request) -> web.Response:
        return web.json_response(self._fleet.callers(_filter(request)))


def _filter(request: web.Request) -> str:
    return request.query.get("filter", "")[:_LONGEST_FILTER]


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= most):
        raise HttpRefusal(400, "invalid", f"{name} must be a number from 0 to {most}")
    return int(text)


async def serve_page(config: FleetConfig) -> None:
    fleet = Fleet(config.targets)
    credentials = config.credentials
    scheme = "http" if credentials.tls is None else "https"
    routes = FleetHandlers(fleet, load_page(), scheme).routes()
    async with (
        StopRequest() as stop,
        NodePoll(fleet, credentials, config.limits) as poll,
        aclosing(config.members()) as members,
    ):
        await poll.ask_these(await anext(members))
        server = await start_http_server(config.bind, routes, lambda: None, config.access)
        shown = "http" if config.access.tls is None else "https"
        print(f"{shown}://{server.address}/", flush=True)
        async with asyncio.TaskGroup() as tasks:
            working = [
                tasks.create_task(poll.follow(members)),
                tasks.create_task(_mark_time(fleet, config.every_seconds)),
            ]
            await stop.wait()
            for task in working:
                task.cancel()
        await server.drain()


async def _mark_time(fleet: Fleet, every_seconds: float) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        fleet.mark_time(time.time())
