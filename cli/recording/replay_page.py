"""`tasuki replay FILE`: serves the dashboard page of a recording, without the node.

Fills a history with the recording's events and serves it like a node does. A recording has no radix
tree.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasuki.utils.flags import FlagParser

from .file_format import NOT_CONNECTED, Recording

if TYPE_CHECKING:
    from tasuki.server.http.dashboard import DashboardSource


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki replay", "The page of a recording.")
    parser.add_argument("file", type=Path, help="of `tasuki record`")
    parser.add_argument(
        "--bind", default="127.0.0.1:8080", metavar="HOST:PORT", help="port 0 picks one"
    )
    parser.add_argument("--seconds", type=float, help="show only so much of its beginning")
    values = parser.parse_args(argv)
    recording = Recording.load(values.file)
    asyncio.run(_serve_page(replayed(recording, values.seconds), values.bind))
    return 0


def replayed(recording: Recording, seconds: float | None = None) -> "DashboardSource":
    """Return a recording as the page's data source: a history of its events with a time, without a
    radix tree. seconds: length to replay from its start; None: all."""
    from tasuki.dashboard.history.node_history import NodeHistory
    from tasuki.server.http.dashboard import DashboardSource

    history = NodeHistory()
    last = first = recording.events[0]["at"] if recording.events else 0.0
    for event in recording.events:
        if event["kind"] == NOT_CONNECTED:
            continue
        if "at" not in event or (seconds is not None and event["at"] > first + seconds):
            continue
        history.apply(event)
        last = event["at"]
    about = {**recording.about, "recorded": f"{last - first:.0f} s"}
    return DashboardSource(history, lambda: last, None, about)


async def _serve_page(source: "DashboardSource", bind: str) -> None:
    from tasuki.dashboard.page_files import load_page
    from tasuki.server.daemon.shutdown import StopRequest
    from tasuki.server.http.dashboard import DashboardHandlers
    from tasuki.server.http.server import start_http_server

    async with StopRequest() as stop:
        routes = DashboardHandlers(source, load_page()).routes()
        server = await start_http_server(bind, routes, lambda: None)
        print(f"http://{server.address}/", flush=True)
        await stop.wait()
        await server.drain()
