"""Tests of the figures at the top of a node's page and of `tasuki top`: its health and the last
minute."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tasuki.cli.top import screen
from tasuki.dashboard.health import Standing
from tasuki.dashboard.history import views
from tasuki.dashboard.history.events import event_of, pools_event
from tasuki.dashboard.history.node_history import NodeHistory
from tasuki.dashboard.history.rates import PaceHistory
from tasuki.dashboard.memory_use import memory_use
from tasuki.dashboard.observed import NodeReport
from tasuki.engine import messages as m
from tasuki.engine.messages import LifeMark, RequestPhase

POOL = {"free": 10, "tree": 30, "pinned": 8, "working": 12, "granted": 0, "quarantined": 0}
STATS = m.StatsReply(
    1,
    POOL | {"total": 52},
    dict.fromkeys(POOL, 0) | {"tree": 4, "pinned": 1, "working": 2, "total": 6},
    {"free": 4, "pages": 10, "slots": 6, "total": 20},
    {"nodes": 3, "checkpoints": 2},
    {},
    {RequestPhase.DECODING: 3, RequestPhase.PULLING: 1, RequestPhase.WAITING: 2},
    slab_bytes=4096,
    each_bytes={"page": 1024, "slot": 4000},
)
ABOUT = {"node": "n", "role": "decode"}


def told(history: NodeHistory, at: float, message: Any) -> None:
    history.apply(json.loads(json.dumps({**event_of(message), "at": at})))


def sampled(history: NodeHistory, at: float, generated: int, **changed: Any) -> None:
    report = NodeReport(replace(STATS, **changed), {"connected": 2})
    history.apply(json.loads(json.dumps({**pools_event(report, generated), "at": at})))


def ended(name: str, first: float, each: float) -> m.Finished:
    hit = m.HitBreakdown(100, 60, 60, {"new": 30, "alignment": 10}, None)
    usage = m.Usage(100, 5, hit, None, "local", False, first, first + 4 * each)
    life = (LifeMark(RequestPhase.PREFILLING, 0.5), LifeMark(RequestPhase.FINISHED, 1.0))
    return m.Finished(m.RequestId(name), m.FinishReason.STOP, usage, life)


def lived() -> NodeHistory:
    """Return a minute's history: a hundred answers, and 50 tokens a second."""
    history = NodeHistory()
    for second in range(60):
        sampled(history, 1000.0 + second, 50 * second)
    for number in range(100):
        told(history, 1059.5, ended(f"r{number}", 0.1 + 0.001 * number, 0.02))
    return history


def health_of(history: NodeHistory, now: float, standing: Standing) -> tuple[str, str, list[str]]:
    found = views.figures(history, now, standing)["health"]
    return found["word"], found["level"], [reason["text"] for reason in found["reasons"]]


def test_the_last_minute_in_figures() -> None:
    figures = views.figures(lived(), 1060.0, Standing())
    assert figures["output_rate"] == pytest.approx(50) and figures["ended"] == 100
    assert figures["ttft"] == pytest.approx({"p50": 0.1495, "p95": 0.19405})
    assert figures["itl"] == pytest.approx({"p50": 0.02, "p95": 0.02})
    assert figures["queued"] == {"p50": 0.5, "p95": 0.5}
    assert (figures["waiting"], figures["running"], figures["sampled_at"]) == (3, 3, 1059.0)
    assert figures["hit"] == {
        "prompt": 10_000,
        "usable": 6000,
        "lost": {"new": 3000, "alignment": 1000},
    }
    assert figures["prompt_rate"] == pytest.approx(10_000 / 60)
    later = views.figures(lived(), 1200.0, Standing())
    assert (later["ttft"], later["hit"], later["ended"]) == (None, None, 0)


def test_memory_is_shares_of_the_arena_s_bytes() -> None:
    # Each of the 20 slabs holds 4 pages. 20 pages and 3 slots are in use; 22 pages and 3 slots may
    # be evicted.
    memory = views.figures(lived(), 1060.0, Standing())["memory"]
    assert memory == {
        "in_use": 8 * 4096,
        "cached": 8.5 * 4096,
        "free": 3.5 * 4096,
        "size": 20 * 4096,
    }
    assert memory_use({"working": 4}, {}, 0, 4096, 1024) is None
    assert memory_use({"working": 4}, {}, 2, 4096, 0) is None
    full = memory_use({"working": 9}, {"evictable": 1}, 2, 4096, 1024)
    assert full is not None and (full.in_use, full.cached, full.free) == (8192, 0, 0)


def test_health_is_a_word_and_the_reasons_worst_first() -> None:
    history = lived()
    assert health_of(history, 1060.0, Standing()) == ("ready", "fine", [])
    draining = Standing(draining=True)
    assert health_of(history, 1060.0, draining) == ("draining", "slow", ["takes no new requests"])
    lost = Standing("the engine has ended no step for 300 s", draining=True)
    assert health_of(history, 1060.0, lost) == ("not ready", "dead", [lost.lost])
    for number in range(3):
        error = m.RequestError(m.ErrorKind.OVERLOADED, "no room")
        told(history, 1060.0 + number, m.Rejected(m.RequestId(f"no-{number}"), error))
    error = m.RequestError(m.ErrorKind.INTERNAL, "it broke")
    told(history, 1064.0, m.Rejected(m.RequestId("broken"), error))
    told(history, 1064.0, m.Rejected(m.RequestId("own"), replace(error, kind=m.ErrorKind.INVALID)))
    assert health_of(history, 1065.0, Standing()) == (
        "ready",
        "faulty",
        ["1 requests failed in a minute", "3 requests refused in a minute"],
    )
    assert health_of(history, 1075.0, Standing())[2][-1] == (
        "the engine has ended no step for 16 s"
    )
    sampled(history, 1200.0, 0, integrity="a page of nobody")
    assert health_of(history, 1200.0, Standing())[2] == ["the cache's invariants are broken"]


def test_links_that_are_not_connected_are_told() -> None:
    history = NodeHistory()
    report = NodeReport(STATS, {"connected": 2, "lost": 1})
    history.apply({**pools_event(report, 0), "at": 5.0})
    assert health_of(history, 5.0, Standing()) == (
        "ready",
        "faulty",
        ["1 of 3 links not connected"],
    )


def test_the_terminal_has_the_page_s_figures() -> None:
    history = lived()
    lines = screen({"about": ABOUT, **views.overview(history, 1060.0, 300, 40)})
    assert lines[:3] == [
        "n (decode): ready",
        "  output 50.0 tokens/s, first token 150 ms (p95 194 ms), "
        "each after 20 ms (p95 20 ms), 3 waiting, 3 running",
        "  hit rate 60.0% (new 30.0%, alignment 10.0%), memory 40.0% in use, 42.5% cached",
    ]
    stale = screen({"about": ABOUT, **views.overview(history, 1072.0, 300, 40)})
    assert "(the engine has ended no step for 13 s)" in stale[0]
    assert "3 waiting, 3 running (13 s ago)" in stale[1]
    empty = screen({"about": ABOUT, **views.overview(NodeHistory(), 5.0, 300, 40)})
    assert empty[1] == "  output - tokens/s, first token -, each after -, -"


def test_a_recording_without_the_new_fields_has_no_such_figures() -> None:
    history = NodeHistory()
    for at in (1.0, 2.0):
        event = pools_event(NodeReport(STATS), 7)
        del event["memory"], event["generated_tokens"]
        history.apply({**event, "at": at})
    shown = views.overview(history, 2.0, 60, 10)
    assert shown["figures"]["memory"] is None and shown["figures"]["output_rate"] is None
    assert shown["series"]["output_rate"] == [None, None]


def test_five_minutes_are_a_curve() -> None:
    history = lived()
    for number in range(20):
        told(history, 1100.0 + 10 * number, ended(f"s{number}", 1.0, 0.1))
    shown = views.overview(history, 1300.0, 300, 60)["first_tokens"]
    assert len(shown["at"]) == 60 and shown["at"][-1] == 1305
    by_end = dict(zip(shown["at"], shown["p95"], strict=True))
    assert by_end[1060] == pytest.approx(0.19405) and by_end[1105] == 1.0
    assert by_end[1110] is None
    assert len(views.overview(history, 1300.0, 300, 10)["first_tokens"]["at"]) == 10


def test_of_very_many_answers_a_sample_stands_for_all_and_memory_is_bounded() -> None:
    pace = PaceHistory()
    for number in range(20_000):
        pace.add(100.0 + number / 4000, first_token=number / 20_000)
    latest = pace.latest(105.0)
    assert latest["ended"] == 20_000
    assert latest["first_token"]["p50"] == pytest.approx(0.5, abs=0.1)
    for second in range(200, 20_000):
        pace.add(float(second), first_token=1.0)
    assert sum(len(one.values["first_token"]) for one in pace._recent) <= 65 + 5
    assert len(pace._past) == 720
