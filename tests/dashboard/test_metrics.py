"""Tests of /metrics: Prometheus accepts the names, and the numbers equal those reported to
clients."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tasuki.dashboard.metrics.cache_metrics import arena_use
from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.metrics.metrics_reference import reference
from tasuki.dashboard.metrics.transfer_metrics import FaultMetrics
from tasuki.dashboard.observed import NodeReport
from tasuki.engine import messages as m
from tasuki.engine.accounting import StepTimes
from tasuki.engine.messages import LifeMark, RequestPhase
from tasuki.transfer.reports import (
    Drain,
    HandoverTimeline,
    ReceiverTrack,
    SenderCounters,
    SenderTrack,
    SendReport,
    SentChunk,
    TransferBroke,
    TransferSent,
)
from tests.harness.metrics_text import samples
from tests.harness.programs import finished, program

POOL = {
    "free": 6,
    "working": 1,
    "tree": 2,
    "granted": 1,
    "quarantined": 0,
    "total": 10,
    "pinned": 1,
}
TREE = (
    *("nodes", "ghost_nodes", "checkpoints", "leases", "cursors", "evicted_pages"),
    *("evicted_checkpoints", "leased_requests", "prompt_tokens", "usable_tokens"),
)
REPORT = NodeReport(
    m.StatsReply(
        query_id=1,
        pages=POOL,
        slots=POOL,
        slabs={"free": 1, "pages": 2, "slots": 3, "total": 6},
        tree={name: index for index, name in enumerate(TREE, 10)},
        lost={"new": 3, "checkpoint_evicted": 4},
        requests={RequestPhase.DECODING: 2, RequestPhase.WAITING: 5},
        policy="lru",
        policies={"lru": 10.0, "value": 20.0},
        stored={
            "weights": "fp8_block",
            "kv": "fp8",
            "states": "float32",
            "draft_layers": "1",
        },
        steps=StepTimes().report(),
        looked_up_tokens=16,
        usable_tokens=12,
        retractions=3,
    ),
    {"connected": 1},
    {"landed": 7},
)
HIT = m.HitBreakdown(100, 64, 60, {"new": 36, "never_checkpointed": 4}, "turn_end")
WINDOWS = tuple(
    SentChunk(number, number, (0.0,), 0, 1, False, 2048, begun_at, begun_at, begun_at + 0.25)
    for number, begun_at in enumerate((0.0, 0.3))
)
TRANSFER = m.TransferReport(
    bytes=4096,
    windows=2,
    pages=1,
    hidden_seconds=0.5,
    exposed_seconds=0.1,
    timeline=HandoverTimeline(SenderTrack((), WINDOWS), ReceiverTrack((), (), ())),
)


def usage(hit: m.HitBreakdown | None, transfer: m.TransferReport | None = None) -> m.Usage:
    return m.Usage(100, 5, hit, transfer, "local", False, 0.2, 1.0)


def exposition(dialect: str = "none") -> Exposition:
    told = Exposition(dialect)
    told.observe(m.Finished("a", m.FinishReason.STOP, usage(HIT, TRANSFER)))
    told.observe(m.Finished("b", m.FinishReason.ABORT, usage(None)))
    told.observe(m.Rejected("c", m.RequestError(m.ErrorKind.TOO_LONG, "too long")))
    for count in (1, 4):
        told.count_tokens(count)
    return told


def test_the_arena_is_told_in_bytes_that_add_up() -> None:
    """Report the same numbers as the pages and the log."""
    slabs = {**REPORT.stats.slabs, "free": 100}
    stats = replace(REPORT.stats, slab_bytes=20, each_bytes={"page": 4, "slot": 20}, slabs=slabs)
    memory = arena_use(stats)
    assert memory is not None and memory.in_use > 0 < memory.cached
    seen = samples(exposition().text(replace(REPORT, stats=stats)))
    parts = {use: seen[f"tasuki_arena_bytes{{use={use}}}"] for use in ("in_use", "cached", "free")}
    assert parts == {key: part for key, part in memory.to_json().items() if key != "size"}
    assert (
        sum(parts.values())
        == memory.size
        == 20 * sum(slabs[use] for use in ("free", "pages", "slots"))
    )


def test_every_reason_and_kind_is_there_before_its_first_event() -> None:
    """Start every series at 0. A series that begins at 1 shows no increase for its first event."""
    seen = samples(Exposition().text(REPORT))
    for kind in m.ErrorKind:
        assert seen[f"tasuki_requests_rejected_total{{kind={kind.value}}}"] == 0
    for reason in m.FinishReason:
        assert seen[f"tasuki_requests_finished_total{{reason={reason.value}}}"] == 0
    live = {phase for phase in RequestPhase if phase.stage is not m.Stage.OVER}
    assert {f"tasuki_requests{{state={phase.value}}}" for phase in live} < {*seen}


def test_requests_are_told_as_their_clients_were() -> None:
    seen = samples(exposition().text(REPORT))
    assert seen["tasuki_requests_finished_total{reason=stop}"] == 1
    assert seen["tasuki_requests_finished_total{reason=abort}"] == 1
    assert seen["tasuki_requests_rejected_total{kind=too_long}"] == 1
    assert seen["tasuki_generated_tokens_total"] == 5
    assert seen["tasuki_request_usable_tokens_total"] == 60
    assert seen["tasuki_request_lost_tokens_total{cause=unscheduled}"] == 100
    lost = sum(
        value for name, value in seen.items() if name.startswith("tasuki_request_lost_tokens_total")
    )
    assert seen["tasuki_request_prompt_tokens_total"] == 200 == 60 + lost
    assert seen["tasuki_handover_bytes_total"] == 4096
    assert seen["tasuki_handover_window_seconds_count"] == 2
    assert seen["tasuki_handover_window_seconds_sum"] == pytest.approx(0.5)
    assert seen["tasuki_time_per_output_token_seconds_sum"] == pytest.approx(2 * 0.8 / 4)


def test_how_a_node_stores_what_it_has_is_labels() -> None:
    name = "tasuki_stored_info{draft_layers=1,kv=fp8,states=float32,weights=fp8_block}"
    assert samples(exposition().text(REPORT))[name] == 1


def test_drafts_are_counted_by_drafter_and_place() -> None:
    told = Exposition()
    uses = (m.DraftUse("mtp", (4, 3), (3, 1)), m.DraftUse("tree", (2,), (0,)))
    for _ in range(2):
        ended = replace(usage(HIT), drafts=uses)
        told.observe(m.Finished("a", m.FinishReason.STOP, ended))
    counted = samples(told.text(REPORT)).items()
    seen = {name: number for name, number in counted if "draft" in name and "_total{" in name}
    assert seen == {
        "tasuki_drafted_tokens_total{drafter=mtp,place=1}": 8,
        "tasuki_drafted_tokens_total{drafter=mtp,place=2}": 6,
        "tasuki_drafted_tokens_total{drafter=tree,place=1}": 4,
        "tasuki_accepted_draft_tokens_total{drafter=mtp,place=1}": 6,
        "tasuki_accepted_draft_tokens_total{drafter=mtp,place=2}": 2,
        "tasuki_accepted_draft_tokens_total{drafter=tree,place=1}": 0,
    }


def test_the_cache_is_told_as_it_counts() -> None:
    seen = samples(exposition().text(REPORT))
    owners = ("free", "working", "pinned", "evictable", "in_transfer", "quarantined")
    assert sum(seen[f"tasuki_cache_pages{{owner={owner}}}"] for owner in owners) == POOL["total"]
    assert seen["tasuki_cache_evictions_total{kind=checkpoint}"] == 16
    assert seen["tasuki_cache_lost_tokens_total{cause=checkpoint_evicted}"] == 4
    assert seen["tasuki_requests{state=Waiting}"] == 5
    assert seen["tasuki_handover_windows_total{outcome=landed}"] == 7
    assert seen["tasuki_cache_integrity"] == 1
    assert seen["tasuki_cache_policy_saved_tokens{policy=value}"] == 20
    assert seen["tasuki_cache_policy_followed{policy=lru}"] == 1
    assert seen["tasuki_engine_step_seconds_bucket{le=+Inf}"] == 0


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (
            "vllm",
            {
                "vllm:prefix_cache_queries_total": 16,
                "vllm:prefix_cache_hits_total": 12,
                "vllm:num_preemptions_total": 3,
                "vllm:num_requests_running": 2,
                "vllm:num_requests_waiting": 5,
                "vllm:kv_cache_usage_perc": 0.4,
                "vllm:generation_tokens_total": 5,
                "vllm:time_to_first_token_seconds_count": 2,
            },
        ),
        (
            "sglang",
            {
                "sglang:cache_hit_rate": 12 / 16,
                "sglang:num_retracted_requests_total": 3,
                "sglang:mamba_usage": 0.4,
                "sglang:num_queue_reqs": 5,
                "sglang:cached_tokens_total": 60,
            },
        ),
    ],
)
def test_other_names_carry_the_same_numbers(dialect: str, expected: dict[str, float]) -> None:
    seen = samples(exposition(dialect).text(REPORT))
    assert {name: seen[name] for name in expected} == pytest.approx(expected)
    ours = samples(exposition().text(REPORT))
    assert {name: seen[name] for name in ours if "_created" not in name} == {
        name: value for name, value in ours.items() if "_created" not in name
    }


@pytest.mark.parametrize("dialect", ["none", "vllm", "sglang"])
def test_prometheus_accepts_every_name(dialect: str) -> None:
    promtool = program("promtool", "install Debian's prometheus")
    told = exposition(dialect).text(REPORT).decode()
    checked = finished([promtool, "check", "metrics"], input=told)
    complaints = (checked.stdout + checked.stderr).splitlines()
    # The names with colons are those of other engines; promtool wants colons in recording rules
    # only.
    ours = [line for line in complaints if line.startswith("tasuki")]
    assert not ours and (dialect != "none" or checked.returncode == 0), complaints


def test_the_reference_names_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert page == reference(), (
        "run python -m tasuki.dashboard.metrics.metrics_reference > docs/metrics.md"
    )


def test_faults_and_fences_are_counted() -> None:
    now = [0.0]
    faults = FaultMetrics(registry := CollectorRegistry(), lambda: now[0])
    transfer_id = m.TransferId(7)
    faults.observe(m.HandoverFailed(transfer_id, "bad bytes", cause=m.LossCause.DIGEST))
    now[0] = 0.5
    faults.observe(m.WriterFenced(transfer_id))
    faults.observe(m.WriterFenced(transfer_id))
    seen = samples(generate_latest(registry))
    assert seen["tasuki_handovers_lost_total{cause=digest}"] == 1
    assert seen["tasuki_handovers_lost_total{cause=stream}"] == 0
    assert (seen["tasuki_fence_seconds_count"], seen["tasuki_fence_seconds_sum"]) == (1, 0.5)


def test_a_prefill_node_tells_of_its_rooms_and_its_sending() -> None:
    told = exposition()
    life = (LifeMark(RequestPhase.AWAITING_GRANT, 0.1), LifeMark(RequestPhase.PREFILLING, 0.3))
    ends = (*life, LifeMark(RequestPhase.HANDING_OVER, 0.8), LifeMark(RequestPhase.FINISHED, 0.9))
    aborted = (*life, LifeMark(RequestPhase.ABORTED, 0.4))
    told.observe(m.TransferEnded(m.TransferId(1), 100, HIT, True, ends))
    told.observe(m.TransferEnded(m.TransferId(2), 100, HIT, False, aborted))
    sent = SenderCounters()
    sent.count(TransferSent(1, SendReport(4096, 3, 2, 0.5, 0.25, (), ())))
    sent.count(TransferBroke(2, "lease", Drain.FORCED, False))
    seen = samples(told.text(replace(REPORT, sent=sent)))
    assert seen["tasuki_rooms_ended_total{outcome=handed_on}"] == 1
    assert seen["tasuki_room_queue_seconds_sum"] == pytest.approx(0.6)
    assert seen["tasuki_room_prefill_seconds_sum"] == pytest.approx(0.5)
    assert seen["tasuki_handover_sent_rooms_total{outcome=forced}"] == 1
    assert seen["tasuki_handover_sent_bytes_total"] == 4096
    assert seen["tasuki_handover_sent_seconds_total{when=exposed}"] == 0.25


def test_a_room_that_a_prefill_node_gave_up_is_counted_by_its_cause() -> None:
    told = exposition()
    life = (LifeMark(RequestPhase.AWAITING_GRANT, 0.1), LifeMark(RequestPhase.ABORTED, 45.0))
    told.observe(m.TransferEnded(m.TransferId(1), 100, HIT, False, life, m.LossCause.STALLED))
    told.observe(m.TransferEnded(m.TransferId(2), 100, None, False, (), m.LossCause.QUEUE_TIMEOUT))
    seen = samples(told.text(REPORT))
    assert seen["tasuki_rooms_ended_total{outcome=stalled}"] == 1
    assert seen["tasuki_rooms_ended_total{outcome=queue_timeout}"] == 1


def test_pulls_are_counted() -> None:
    told = exposition()
    told.observe(m.PullCommitted(m.TransferId(1), m.PullReport(640, 4096, 0.25)))
    told.observe(m.PullLost(m.TransferId(2)))
    told.observe(m.PullFenced(m.TransferId(2)))
    seen = samples(told.text(REPORT))
    assert seen["tasuki_pulls_total{outcome=committed}"] == 1
    assert seen["tasuki_pulls_total{outcome=lost}"] == 1
    assert (seen["tasuki_pulled_tokens_total"], seen["tasuki_pulled_bytes_total"]) == (640, 4096)
    assert seen["tasuki_pull_seconds_sum"] == 0.25
