"""Tests of a daemon's log: its records, and its one line every ten seconds while busy."""

import asyncio
import logging

import pytest
from grpc._cython import cygrpc

from tasuki.dashboard.observed import NodeReport
from tasuki.engine import messages as m
from tasuki.server.daemon import node_recorder
from tasuki.server.daemon.node_recorder import ActivityLog
from tasuki.server.errors import RequestRejected
from tasuki.utils.logs import configure_logging
from tests.harness.grpc_fixtures import usage


@pytest.mark.parametrize("shape", ["text", "json"])
def test_a_caller_that_hangs_up_leaves_no_traceback(
    shape: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    configure_logging(shape, "info")

    def log(name: str, error: Exception) -> str:
        try:
            raise error
        except Exception:
            logging.getLogger(name).exception("raised by a servicer")
        return capsys.readouterr().err

    hung_up = cygrpc.ExecuteBatchError("Failed")
    assert log("grpc._cython.cygrpc", hung_up) == ""
    assert "Traceback" in log("grpc._cython.cygrpc", ValueError("a defect"))
    assert "Traceback" in log("tasuki.server.daemon.node", hung_up)


PAGES = {
    "free": 50,
    "tree": 30,
    "pinned": 10,
    "working": 8,
    "granted": 2,
    "total": 80,
    "quarantined": 0,
}
SLOTS = {
    "free": 20,
    "tree": 12,
    "pinned": 3,
    "working": 2,
    "granted": 0,
    "total": 20,
    "quarantined": 0,
}
HIT = m.HitBreakdown(300, 250, 225, {"new": 75}, None)


def stats(**requests: int) -> m.StatsReply:
    phases = {m.RequestPhase[name]: count for name, count in requests.items()}
    slabs = {"free": 5, "pages": 20, "slots": 15, "total": 40}
    each = {"page": 1024, "slot": 4000}
    return m.StatsReply(1, PAGES, SLOTS, slabs, {}, {}, phases, slab_bytes=4096, each_bytes=each)


def test_a_line_has_rates_queues_the_cache_and_its_hits() -> None:
    kept = ActivityLog()
    kept.count_tokens(40)
    kept.count_tokens(10)
    kept.observe(m.Finished(m.RequestId("r"), m.FinishReason.STOP, usage(4, 50)))
    kept.observe(m.TransferEnded(m.TransferId(1), 300, HIT, True, ()))
    told = usage(4, 50).hit
    assert told is not None
    prompt, usable = 4 + 300, told.usable_tokens + 225
    line = kept.line(stats(WAITING=2, AWAITING_PREFILL=1, DECODING=3, PREFILLING=1), 10.0)
    assert line == (
        f"{prompt / 10:.1f} prompt and 5.0 output tokens/s, 4 running, 3 waiting, "
        # A page takes a quarter of a slab, and a slot takes a whole one.
        f"hit rate {100 * usable / prompt:.1f}%, memory 25.0% in use, 35.0% cached"
    )


def test_counts_begin_anew_and_an_idle_node_is_quiet() -> None:
    kept = ActivityLog()
    kept.count_tokens(40)
    assert kept.line(stats(), 10.0) is not None
    assert kept.line(stats(), 10.0) is None
    line = kept.line(stats(DECODING=1), 10.0)
    assert line is not None and line.startswith("0.0 prompt and 0.0 output") and "rate -" in line


def test_it_writes_until_the_engine_has_died(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_recorder, "PERIOD_SECONDS", 0.001)
    busy = iter([stats(DECODING=1), stats(), stats(WAITING=1)])

    async def ask() -> NodeReport:
        found = next(busy, None)
        if found is None:
            raise RequestRejected(m.RequestError(m.ErrorKind.INTERNAL, "gone"))
        return NodeReport(found)

    with caplog.at_level(logging.INFO):
        asyncio.run(ActivityLog().run(ask))
    assert ["1 running" in line for line in caplog.messages] == [True, False]
