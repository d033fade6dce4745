"""A node's recent past: bounded, made of plain events, cheap to look at."""

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np

from tasuki.cli.top import screen
from tasuki.dashboard.history import views
from tasuki.dashboard.history.events import EventJournal, event_of
from tasuki.dashboard.history.node_history import NodeHistory
from tasuki.dashboard.history.rates import HitIntervals, WhatIf
from tasuki.dashboard.history.views import tree_view
from tasuki.engine import messages as m
from tasuki.engine.messages import EvictedCheckpoint, Eviction, LifeMark, RequestPhase
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import CheckpointKind, PrefixCache, TreeConfig
from tasuki.pycache.packed import pack_tree
from tasuki.transfer.reports import HandoverTimeline, ReceiverTrack, SenderTrack

EVICTION = Eviction(7, "checkpoint", "turn_end", 640, 1.0, 0.25, "thief")
LIFE = (
    LifeMark(RequestPhase.PREFILLING, 0.1),
    LifeMark(RequestPhase.DECODING, 0.4),
    LifeMark(RequestPhase.FINISHED, 1.0),
)
OWNERS = ("working", "pinned", "evictable", "in_transfer", "quarantined", "free")


def hit(prompt: int, usable: int, lost: EvictedCheckpoint | None = None) -> m.HitBreakdown:
    evicted = 0 if lost is None else lost.tokens - usable
    causes = {"new": prompt - usable - evicted, "checkpoint_evicted": evicted}
    return m.HitBreakdown(prompt, usable, usable, causes, None, lost)


def submit(name: str, prompt: int, session: str | None, caller: str = "") -> m.Submit:
    tokens = np.zeros(prompt, dtype=np.int32)
    return m.Submit(m.RequestId(name), tokens, SamplingParams(), session=session, caller=caller)


def finished(
    name: str, found: m.HitBreakdown | None, reason: m.FinishReason = m.FinishReason.STOP
) -> m.Finished:
    prompt = 100 if found is None else found.prompt_tokens
    usage = m.Usage(prompt, 5, found, None, "local", False, 0.2, 1.0)
    return m.Finished(m.RequestId(name), reason, usage, LIFE)


def told(history: NodeHistory, at: float, message: Any) -> None:
    # A recording delivers events in this form.
    history.apply(json.loads(json.dumps({**event_of(message), "at": at})))


def test_a_session_tells_which_turn_an_eviction_cost() -> None:
    history = NodeHistory()
    told(history, 10.0, submit("one", 640, "session 1"))
    told(history, 11.0, finished("one", hit(640, 0)))
    told(history, 15.0, m.Evicted((EVICTION,)))
    told(history, 20.0, submit("two", 900, "session 1"))
    told(history, 21.0, finished("two", hit(900, 128, EvictedCheckpoint(640, 3.5, EVICTION))))
    told(history, 22.0, finished("alone", hit(100, 0)))
    (session,) = views.sessions(history)
    first, second = session["turns"]
    assert (first["pause"], first["evicted"], first["lost"]) == (None, 0, None)
    assert second["pause"] == 9.0 and second["evicted"] == 512
    assert (second["cached"], second["fresh"], second["lost_tokens"]) == (128, 260, 512)
    assert second["lost"]["eviction"]["taken_by"] == "thief"
    assert views.evictions(history)[0]["score"] == 0.25


def test_drafts_are_summed_by_what_proposed_them() -> None:
    history = NodeHistory()
    plain = finished("one", hit(100, 0))
    uses = (m.DraftUse("mtp", (4, 3), (3, 1)), m.DraftUse("tree", (2,), (0,)))
    drafted = replace(plain, usage=replace(plain.usage, drafts=uses))
    for at, message in enumerate((plain, drafted, drafted), 11):
        told(history, float(at), message)
    # An event of a recording older than drafts.
    old = event_of(plain)
    del old["usage"]["drafts"]
    history.apply({**json.loads(json.dumps(old)), "at": 20.0})
    shown = views.overview(history, 21.0, 60, 10)
    assert shown["drafts"] == {
        "mtp": {"drafted": 14, "accepted": 8, "tokens_a_step": [1.75, 2.0]},
        "tree": {"drafted": 4, "accepted": 0, "tokens_a_step": [1.0]},
    }
    about = {"node": "n", "role": "fused"}
    assert screen({**shown, "about": about})[0] == "n (fused): ready"
    lines = [line.split() for line in screen({**shown, "about": about})]
    assert ["drafts:", "mtp", "14", "57.1%", "held"] in lines
    assert any(line[-2:] == ["1.75,", "2.00"] for line in lines)
    del shown["drafts"]
    assert not any("drafts" in line for line in screen({**shown, "about": about}))


def test_a_request_is_told_whole_and_in_a_list() -> None:
    history = NodeHistory()
    told(history, 10.0, submit("one", 100, None))
    assert views.overview(history, 10.0, 60, 10)["in_flight"] == 1
    told(history, 11.0, finished("one", None, m.FinishReason.ABORT))
    told(history, 12.0, m.Rejected(m.RequestId("no"), m.RequestError(m.ErrorKind.INVALID, "why")))
    transfer = m.TransferEnded(m.TransferId(5), 64, hit(64, 0), True, LIFE)
    told(history, 13.0, transfer)
    names = [record["request"] for record in views.requests(history)]
    assert names == ["room-5", "no", "one"]
    figures = views.overview(history, 70.5, 60, 10)["figures"]
    assert figures["ended"] == 3 and figures["ttft"] == {"p50": 0.2, "p95": 0.2}
    assert figures["itl"] == {"p50": 0.8 / 4, "p95": 0.8 / 4}
    assert views.overview(history, 99.0, 60, 10)["figures"]["ttft"] is None
    record = history.requests.find("room-5")
    assert record is not None and record["arrived_at"] == 12.0 and record["handed_on"]
    assert record["queued_seconds"] == 0.1 and record["caller"] is None
    totals = views.overview(history, 13.0, 60, 10)["totals"]
    assert totals["prompt"] == 164 == totals["lost.unscheduled"] + totals["lost.new"]
    told(history, 14.0, m.PullCommitted(m.TransferId(5), m.PullReport(640, 4096, 0.25)))
    told(history, 15.0, m.PullLost(m.TransferId(6)))
    assert history.faults.counts == {"aborted": 1, "rejected.invalid": 1, "pull_lost": 1}


def test_sessions_are_listed_as_far_as_they_can_be_drawn() -> None:
    history = NodeHistory()
    for number in range(30 * 30):
        told(history, float(number), submit(f"r{number}", 100, f"session {number // 30}"))
        told(history, number + 0.5, finished(f"r{number}", hit(100, 0)))
    listed = views.sessions(history)
    assert [session["session"] for session in listed] == [f"session {n}" for n in range(29, 5, -1)]
    assert all(len(session["turns"]) == 24 for session in listed)
    assert listed[0]["turns"][-1]["request"] == "r899"


def test_intervals_add_up_and_old_ones_go() -> None:
    intervals = HitIntervals()
    found = {"usable_tokens": 3, "kv_tokens": 4, "causes": {"new": 7}}
    for second in range(0, 8000, 2):
        intervals.add(float(second), 10, found)
    series = intervals.series(7999.0, 100, 10)
    assert series["at"][-1] == 8000 and len(series["at"]) == 10
    assert series["columns"]["prompt"] == [50] * 10
    assert series["columns"]["lost.new"] == [35] * 10
    assert intervals.totals["prompt"] == 40000
    # 60 whole minutes up to 8040, the end of the current one.
    assert sum(intervals.series(7999.0, 3600, 60)["columns"]["prompt"]) == 10 * (8000 - 4440) // 2


def test_more_slots_would_have_kept_what_was_evicted_last() -> None:
    what_if = WhatIf()
    what_if.add(1000, {"usable_tokens": 900, "lost": None})
    for slabs, recoverable in ((2.5, 400), (3.0, 100), (50.0, 100), (400.0, 20)):
        lost = {"tokens": 100 + recoverable, "slabs_since": slabs}
        what_if.add(1000, {"usable_tokens": 100, "lost": lost})
    answer = what_if.answer()
    assert answer["curve"] == [(3, 500), (50, 600), (400, 620)]
    assert (answer["slots"], answer["tokens"]) == (3, 500) and answer["points"] == 10.0
    assert WhatIf().answer()["slots"] == 0


def test_a_slow_follower_is_told_what_it_missed() -> None:
    journal = EventJournal()
    for number in range(10_000):
        journal.add({"kind": "x", "number": number})
    since = journal.since(0)
    assert (since.missed, since.next) == (10_000 - 8192, 10_000)
    assert [event["number"] for event in since.events] == list(range(since.missed, 10_000))
    for number in (9_000, 9_487, 9_488, 9_999):
        assert journal.since(number).events[0] == {"kind": "x", "number": number}
    assert journal.since(10_000).events == ()


def full_history() -> NodeHistory:
    """Return a history with every ring full."""
    history = NodeHistory()
    sample = {
        "kind": "pools",
        **{pool: dict.fromkeys(OWNERS, 1) for pool in ("slots", "pages")},
        "memory": {"in_use": 10, "cached": 80, "free": 10, "size": 100},
        "requests": {"Waiting": 1, "Decoding": 9},
        "integrity": "ok",
    }
    lost = EvictedCheckpoint(640, 3.5, EVICTION)
    for number in range(4200):
        at = float(number)
        told(history, at, submit(f"r{number}", 900, f"session {number % 300}"))
        told(history, at, finished(f"r{number}", hit(900, 128, lost)))
        history.apply({**sample, "generated_tokens": 5 * number, "at": at})
    return history


def test_looking_costs_little_however_much_is_kept() -> None:
    history = full_history()
    tree = PrefixCache(
        TreeConfig(slabs=3000, blocks_per_slab=4, pages_per_slab=4, max_ghost_nodes=64)
    )
    for seed in range(1500):
        tokens = np.random.default_rng(seed).integers(0, 1000, 129).astype(np.int32)
        allocation = tree.allocate(tokens, capacity_tokens=129, working_slots=1)
        assert allocation is not None
        tree.insert(allocation, 128, allocation.working_slots[0], CheckpointKind.PROMPT_END)
        tree.release(allocation)

    def second_of_looking() -> None:
        json.dumps(views.overview(history, 4200.0, 300, 150))
        view = tree.view(256, None)
        assert view is not None
        json.dumps(tree_view(pack_tree(view)))

    second_of_looking()
    costs = []
    for _ in range(5):
        began = time.process_time()
        second_of_looking()
        costs.append(time.process_time() - began)
    # Seconds of one core, for a second of looking. The tree's part depends on the nodes drawn, not
    # on all nodes.
    assert min(costs) < 0.03, costs


def test_timelines_are_kept_of_fewer_requests_than_ends() -> None:
    """Keep the timelines of the newest 128 requests with one, for transfers and pulls. The
    journal's pull event holds no second copy."""
    history = NodeHistory()
    track = HandoverTimeline(SenderTrack((), ()), ReceiverTrack((), (), ()))
    pulled, transfer = m.PullReport(64, 1, 0.1, track), m.TransferReport(1, 1, 1, 0.0, 0.0, track)
    for number in range(200):
        usage = m.Usage(100, 5, None, transfer, "prefill", False, 0.2, 1.0, pulled)
        end = m.Finished(m.RequestId(f"r{number}"), m.FinishReason.STOP, usage, LIFE)
        told(history, float(number), end)
    told(history, 200.0, m.PullCommitted(m.TransferId(5), pulled))
    assert history.journal.since(200).events[0]["report"]["timeline"] is None
    drawn = [history.requests.find(f"r{number}") for number in range(200)]
    for name in ("transfer", "pulled"):
        kept = [record["usage"][name]["timeline"] is not None for record in drawn if record]
        assert kept == [False] * 72 + [True] * 128
        assert all("timeline" not in row["usage"][name] for row in views.requests(history))
    listed = [row["request"] for row in views.handovers(history)]
    assert listed == [f"r{number}" for number in range(199, 71, -1)]
    # Any number of requests without one may end in the meantime.
    for number in range(2000):
        told(history, 201.0 + number, finished(f"later-{number}", hit(100, 0)))
    assert [row["request"] for row in views.handovers(history)] == listed
    whole = history.requests.find("r72")
    assert whole is not None and whole["usage"]["transfer"]["timeline"] is not None
    assert history.requests.find("r71") is None


def test_those_that_run_stand_above_those_that_ended() -> None:
    history = NodeHistory()
    for at, name in enumerate(("one", "two", "three"), 10):
        told(history, float(at), submit(name, 100, None, "agents"))
    told(history, 20.0, finished("one", hit(100, 0)))
    rows = views.requests(history)
    assert [row["request"] for row in rows] == ["three", "two", "one"]
    assert [row["ended_at"] for row in rows] == [None, None, 20.0]
    assert {row["caller"] for row in rows} == {"agents"}
    assert (rows[0]["arrived_at"], rows[0]["prompt_tokens"]) == (12.0, 100)
    assert rows[2]["queued_seconds"] == 0.1
