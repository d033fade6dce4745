"""Tests of the dashboard over HTTP: paths protected by the key, refusals, and both streams."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tasuki.dashboard.health import Standing
from tasuki.dashboard.history.node_history import NodeHistory
from tasuki.dashboard.page_files import INDEX, load_page
from tasuki.server.config import ServerConfig
from tasuki.server.http import dashboard as dashboard_routes
from tasuki.server.http.dashboard import DashboardHandlers, DashboardSource
from tests.harness.api_keys import headers
from tests.harness.http_fixtures import HttpFront, running_http

KEY = "a-key-of-this-test"
READY = Standing()


@contextmanager
def dashboard(
    history: NodeHistory, api_key: str = "", standing: Standing = READY
) -> Iterator[HttpFront]:
    source = DashboardSource(
        history, lambda: 60.0, None, {"node": "n", "role": "fused"}, standing=lambda: standing
    )
    routes = DashboardHandlers(source, load_page()).routes()
    with running_http(config=ServerConfig(api_key=api_key), routes=routes) as http:
        yield http


async def keep(history: NodeHistory, name: str) -> None:
    history.apply({"kind": "submit", "at": 1.0, "request": name, "session": None})


@contextmanager
def streamed(http: HttpFront, path: str) -> Iterator[Iterator[Any]]:
    """Yield the values of a server-sent stream; leave the stream after the block."""
    with closing(http.connect()) as connection:
        connection.request("GET", path)
        reply = connection.getresponse()
        assert reply.headers["Content-Type"] == "text/event-stream"
        yield (json.loads(line[6:]) for line in reply if line.startswith(b"data: "))


def test_the_page_is_open_and_its_data_is_not() -> None:
    with dashboard(NodeHistory(), KEY) as http:
        for path in ("/", *(f"/page/{name}" for name in load_page())):
            reply = http.ask("GET", path)
            assert reply.status == 200, path
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("overview", "stream", "events", "requests", "sessions", "faults", "tree"):
            assert http.ask("GET", f"/debug/{path}").status == 401, path
        overview = http.ask("GET", "/debug/overview", headers=headers(KEY))
        assert overview.json["about"]["node"] == "n"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/page/../secrets", 404),
        ("/page/nothing.js", 404),
        ("/debug/requests/nobody", 404),
        ("/debug/tree", 404),
        ("/debug/overview?points=1e9", 400),
        ("/debug/overview?seconds=9999999", 400),
        ("/debug/events?after=-1", 400),
    ],
)
def test_what_is_not_there_is_refused(path: str, status: int) -> None:
    with dashboard(NodeHistory()) as http:
        assert http.ask("GET", path).status == status


def test_both_streams_tell_what_is_there_and_what_comes() -> None:
    history = NodeHistory()
    with dashboard(history) as http:
        http.front.run(keep(history, "one"))
        with streamed(http, "/debug/stream?seconds=60&points=10") as overviews:
            overview = next(overviews)
            assert overview["in_flight"] == 1 and len(overview["hits"]["at"]) == 10
        with streamed(http, "/debug/events?after=0") as events:
            assert next(events)["request"] == "one"
            http.front.run(keep(history, "two"))
            assert next(events)["request"] == "two"


def test_the_overview_comes_again_where_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat the overview, so a reader can distinguish a silent node from a lost one."""
    monkeypatch.setattr(dashboard_routes, "_STREAM_SECONDS", 0.01)
    with dashboard(NodeHistory()) as http, streamed(http, "/debug/stream") as overviews:
        assert [next(overviews)["events"] for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("standing", "word", "level"),
    [
        (READY, "ready", "fine"),
        (Standing(draining=True), "draining", "slow"),
        (Standing(lost="out of memory"), "not ready", "dead"),
    ],
)
def test_a_node_s_own_word_is_its_health(standing: Standing, word: str, level: str) -> None:
    with dashboard(NodeHistory(), standing=standing) as http:
        health = http.ask("GET", "/debug/overview").json["figures"]["health"]
        assert (health["word"], health["level"]) == (word, level)


def test_the_page_names_only_its_own_files() -> None:
    page = load_page()
    text = page[INDEX].content.decode()
    assert "http://" not in text and "https://" not in text and "<script>" not in text
    scripts = [file.content.decode() for name, file in page.items() if "vendor" not in name]
    assert not any("innerHTML" in script or "eval(" in script for script in scripts)
    assert "MIT" in page["vendor/uplot-LICENSE.txt"].content.decode()
