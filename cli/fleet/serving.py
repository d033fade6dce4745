"""The life of the fleet's page: its server, who asks nodes, and the end."""

import asyncio
import time
from contextlib import aclosing

from tasuki.dashboard.fleet.fleet import Fleet
from tasuki.dashboard.page_files import load_page
from tasuki.server.daemon.lifecycle import StopRequest
from tasuki.server.http.server import start_http_server

from .fleet_config import FleetConfig
from .fleet_handlers import FleetHandlers
from .node_poll import NodePoll


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
