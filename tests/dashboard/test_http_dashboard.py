"""The dashboard over HTTP: what needs the key, what is refused, and both streams."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from tasuki.dashboard.history.node_history import NodeHistory
from tasuki.dashboard.page_files import INDEX, load_page
from tasuki.server.auth.access import Access
from tasuki.server.http.dashboard import DashboardHandlers, DashboardSource
from tasuki.server.http.server import start_http_server

KEY = "a-key-of-this-test"


def kept(history: NodeHistory, name: str) -> None:
    history.apply({"kind": "submit", "at": 1.0, "request": name, "session": None})


@asynccontextmanager
async def dashboard(
    history: NodeHistory, api_key: str = ""
) -> AsyncIterator[aiohttp.ClientSession]:
    source = DashboardSource(history, lambda: 60.0, None, {"node": "n", "role": "fused"})
    routes = DashboardHandlers(source, load_page()).routes()
    access = Access(api_key=api_key)
    server = await start_http_server("127.0.0.1:0", routes, lambda: None, access)
    try:
        async with aiohttp.ClientSession(f"http://{server.address}") as session:
            yield session
    finally:
        await server.drain()


async def first_values(session: aiohttp.ClientSession, path: str, count: int) -> list[Any]:
    """Of a server-sent stream, which is then left."""
    values: list[Any] = []
    async with session.get(path) as reply:
        assert reply.headers["Content-Type"] == "text/event-stream"
        async for line in reply.content:
            if line.startswith(b"data: "):
                values.append(json.loads(line[6:]))
            if len(values) == count:
                return values
    raise AssertionError(f"{path} ended after {len(values)} values")


def test_the_page_is_open_and_its_data_is_not() -> None:
    async def check() -> None:
        async with dashboard(NodeHistory(), KEY) as session:
            for path in ("/", *(f"/page/{name}" for name in load_page())):
                async with session.get(path) as reply:
                    assert reply.status == 200, path
                    assert reply.headers["X-Content-Type-Options"] == "nosniff"
            for path in ("overview", "stream", "events", "requests", "sessions", "faults", "tree"):
                async with session.get(f"/debug/{path}") as reply:
                    assert reply.status == 401, path
            bearer = {"Authorization": f"Bearer {KEY}"}
            async with session.get("/debug/overview", headers=bearer) as reply:
                assert (await reply.json())["about"]["node"] == "n"

    asyncio.run(check())


def test_what_is_not_there_is_refused() -> None:
    async def check() -> None:
        async with dashboard(NodeHistory()) as session:
            for path, status in (
                ("/page/../secrets", 404),
                ("/page/nothing.js", 404),
                ("/debug/requests/nobody", 404),
                ("/debug/tree", 404),
                ("/debug/overview?points=1e9", 400),
                ("/debug/overview?seconds=9999999", 400),
                ("/debug/events?after=-1", 400),
            ):
                async with session.get(path) as reply:
                    assert reply.status == status, path

    asyncio.run(check())


def test_both_streams_tell_what_is_there_and_what_comes() -> None:
    async def check() -> None:
        history = NodeHistory()
        kept(history, "one")
        async with dashboard(history) as session:
            (overview,) = await first_values(session, "/debug/stream?seconds=60&points=10", 1)
            assert overview["in_flight"] == 1 and len(overview["hits"]["at"]) == 10
            reading = asyncio.create_task(first_values(session, "/debug/events?after=0", 2))
            await asyncio.sleep(0.05)
            kept(history, "two")
            events = await reading
            assert [event["request"] for event in events] == ["one", "two"]

    asyncio.run(check())


def test_the_page_names_only_its_own_files() -> None:
    page = load_page()
    text = page[INDEX].content.decode()
    assert "http://" not in text and "https://" not in text and "<script>" not in text
    scripts = [file.content.decode() for name, file in page.items() if "vendor" not in name]
    assert not any("innerHTML" in script or "eval(" in script for script in scripts)
    assert "MIT" in page["vendor/uplot-LICENSE.txt"].content.decode()
