"""Every phase of a request is counted by every consumer, always under the same name."""

from dataclasses import replace

import pytest

from tasuki.dashboard.history.events import to_json
from tasuki.dashboard.metrics.request_metrics import prefilled_seconds, queued_seconds
from tasuki.engine import request as states
from tasuki.engine.messages import LifeMark, RequestPhase, Stage
from tasuki.server.smg.service import scheduler_load
from tests.dashboard.test_metrics import REPORT, exposition, samples

GAUGES = {
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
}


def counted_as(phase: RequestPhase) -> dict[str, tuple[float, float]]:
    """Return (running, waiting) of one request in `phase`, by consumer."""
    report = replace(REPORT, stats=replace(REPORT.stats, requests={phase: 1}))
    seen = {}
    for dialect, (running, waiting) in GAUGES.items():
        told = samples(exposition(dialect).text(report))
        seen[dialect] = told[running], told[waiting]
    load = scheduler_load(report.stats, max_running=8)
    seen["gateway"] = load.num_running_reqs, load.num_waiting_reqs
    return seen


def test_a_request_that_pulls_waits_for_every_reader() -> None:
    assert counted_as(RequestPhase.PULLING) == dict.fromkeys((*GAUGES, "gateway"), (0, 1))
    life = (
        LifeMark(RequestPhase.PULLING, 0.25),
        LifeMark(RequestPhase.WAITING, 0.5),
        LifeMark(RequestPhase.AWAITING_GRANT, 0.75),
        LifeMark(RequestPhase.PREFILLING, 1.0),
        LifeMark(RequestPhase.HANDING_OVER, 1.5),
    )
    assert queued_seconds(life) == 1.0 and prefilled_seconds(life) == 0.5


def test_a_request_that_another_node_prefills_waits_for_the_gateway_too() -> None:
    assert counted_as(RequestPhase.AWAITING_PREFILL)["gateway"] == (0, 1)


@pytest.mark.parametrize("phase", RequestPhase)
def test_every_reader_counts_a_phase_alike(phase: RequestPhase) -> None:
    expected = {
        Stage.QUEUED: (0, 1),
        Stage.PREFILL: (1, 0),
        Stage.DECODE: (1, 0),
        Stage.HANDOVER: (1, 0),
        Stage.OVER: (0, 0),
    }[phase.stage]
    assert (phase.is_running, phase.is_queued) == expected
    assert counted_as(phase) == dict.fromkeys((*GAUGES, "gateway"), expected)
    life = (LifeMark(phase, 1.0), LifeMark(RequestPhase.FINISHED, 3.0))
    assert queued_seconds(life) == (3.0 if phase.is_queued else 1.0)
    assert prefilled_seconds(life) == (2.0 if phase.stage is Stage.PREFILL else 0.0)


def test_every_phase_that_lasts_has_a_span() -> None:
    otel = pytest.importorskip("tasuki.server.otel")
    momentary = {phase for phase in RequestPhase if phase.stage is Stage.OVER}
    # A retracted request waits again at once.
    momentary.add(RequestPhase.RETRACTED)
    assert set(otel._SPAN_OF) == set(RequestPhase) - momentary


def test_each_state_has_a_phase_of_its_own_whose_name_is_public() -> None:
    named = {state: state.phase for state in states.MOVES}
    assert sorted(named.values()) == sorted(RequestPhase)
    for state, phase in named.items():
        # Labels of metrics, keys of Stats, words of Explain and of the page.
        assert phase.value == f"{phase}" == state.__name__
        assert to_json({phase: LifeMark(phase, 0.5)}) == {phase.value: {"state": phase, "at": 0.5}}
