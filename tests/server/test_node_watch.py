"""Tests of a node's /metrics in any state of its engine: late, silent or dead. They also cover a
disk that does not answer."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tasuki.dashboard.health import Standing
from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.observed import DiskRoom, FrontReport, NodeReport, NodeState
from tasuki.engine import messages as m
from tasuki.server.daemon import node_watch
from tasuki.server.daemon import node_watch as disk_rooms
from tasuki.server.daemon.node_watch import DiskRooms, LatestCounters, NodeFiles, NodeWatch
from tasuki.server.errors import RequestRejected
from tests.dashboard.test_metrics import REPORT
from tests.harness.metrics_text import samples
from tests.harness.waiting import HANG_SECONDS

SOON = 0.01
DIED = RequestRejected(m.RequestError(m.ErrorKind.INTERNAL, "the engine has died"))


class Engine:
    """An engine that answers only from its queue of answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Queue[NodeReport | Exception] = asyncio.Queue()
        self.seconds = 0.0

    async def ask(self) -> NodeReport:
        self.asked += 1
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def clock(self) -> float:
        return self.seconds


async def test_an_engine_that_is_late_is_asked_once_and_shown_as_it_was() -> None:
    engine = Engine()
    latest = LatestCounters(engine.ask, engine.clock)
    assert await latest.within(SOON) is None
    engine.seconds = 30.0
    assert latest.silent_seconds == 30.0
    await asyncio.gather(*(latest.within(SOON) for _ in range(5)))
    assert engine.asked == 1
    engine.answers.put_nowait(REPORT)
    assert await latest.within(HANG_SECONDS) is REPORT
    assert latest.silent_seconds == 0.0
    # The next report is late: the last one is shown, with the time since the next was due.
    engine.seconds = 100.0
    assert await latest.within(SOON) is REPORT
    assert latest.silent_seconds == 0.0
    engine.seconds = 107.0
    assert latest.silent_seconds == 7.0 and engine.asked == 2
    engine.answers.put_nowait(DIED)
    assert await latest.within(HANG_SECONDS) is None
    assert latest.silent_seconds == 0.0
    latest.close()


async def test_a_node_s_state_is_what_load_balancers_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "_ENGINE_SECONDS", SOON)

    engine = Engine()
    standing = [Standing()]
    watch = NodeWatch(engine.ask, lambda: standing[0], lambda: {"busy": 2}, NodeFiles(), None)
    report, front = await watch.reports()
    assert report is None and front.state is NodeState.STARTING
    engine.answers.put_nowait(REPORT)
    report, front = await watch.reports()
    assert report is REPORT and front == FrontReport(NodeState.READY, failures={"busy": 2})
    standing[0] = Standing(None, True)
    assert (await watch.reports())[1].state is NodeState.DRAINING
    standing[0] = Standing("the watchdog gave it up", True)
    report, front = await watch.reports()
    # The earlier report is no longer true.
    assert report is None and front.state is NodeState.LOST
    watch.close()


def test_of_an_engine_that_died_the_rest_is_told() -> None:
    told = Exposition("vllm")
    told.observe(m.Rejected("a", m.RequestError(m.ErrorKind.INTERNAL, "it has died")))
    front = FrontReport(
        NodeState.LOST,
        failures={"internal": 3},
        certificates={"tls_cert": 5.0},
        disks={"disk_cache": DiskRoom(1, 4)},
    )
    seen = samples(told.text(None, front))
    assert seen["tasuki_node_state{state=lost}"] == 1
    assert seen["tasuki_node_state{state=ready}"] == 0
    assert seen["tasuki_calls_failed_total{kind=internal}"] == 3
    assert seen["tasuki_requests_rejected_total{kind=internal}"] == 1
    assert seen["tasuki_certificate_not_after_seconds{setting=tls_cert}"] == 5
    assert seen["tasuki_disk_bytes{setting=disk_cache,what=free}"] == 1
    assert not any(
        name.startswith(("tasuki_cache_pages", "tasuki_requests{", "vllm:")) for name in seen
    )


def test_the_room_of_a_disk_is_its_file_system_s(tmp_path: Path) -> None:
    rooms = DiskRooms({"disk_cache": str(tmp_path), "gone": str(tmp_path / "gone")})
    found = asyncio.run(rooms.within(HANG_SECONDS))
    stat = os.statvfs(tmp_path)
    assert {*found} == {"disk_cache"}
    assert found["disk_cache"].total == stat.f_blocks * stat.f_frsize
    assert 0 <= found["disk_cache"].free <= found["disk_cache"].total
    assert asyncio.run(DiskRooms({}).within(0)) == {}


def test_a_disk_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    room, looks = {"disk_cache": DiskRoom(1, 2)}, 0
    let_go = threading.Event()

    def look(folders: object) -> dict[str, DiskRoom]:
        nonlocal looks
        looks += 1
        if looks > 1:
            let_go.wait(HANG_SECONDS)
        return room

    monkeypatch.setattr(disk_rooms, "_rooms", look)

    async def run() -> None:
        rooms = DiskRooms({"disk_cache": "/anywhere"})
        assert await rooms.within(HANG_SECONDS) == room
        for _ in range(3):
            assert await rooms.within(SOON) == room
        assert looks == 2

    try:
        asyncio.run(run())
    finally:
        let_go.set()
