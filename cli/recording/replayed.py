"""A recording as the source of a page: a history of its events, and no tree to ask."""

from tasuki.dashboard.history.node_history import NodeHistory
from tasuki.dashboard.page_files import load_page
from tasuki.server.daemon.lifecycle import StopRequest
from tasuki.server.http.dashboard import DashboardHandlers, DashboardSource
from tasuki.server.http.server import start_http_server

from .file_format import NOT_CONNECTED, Recording


def replayed(recording: Recording, seconds: float | None = None) -> DashboardSource:
    """seconds: of its beginning; None: all."""
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


async def serve_page(source: DashboardSource, bind: str) -> None:
    async with StopRequest() as stop:
        routes = DashboardHandlers(source, load_page()).routes()
        server = await start_http_server(bind, routes, lambda: None)
        print(f"http://{server.address}/", flush=True)
        await stop.wait()
        await server.drain()
