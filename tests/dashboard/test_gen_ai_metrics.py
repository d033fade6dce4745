"""OpenTelemetry's GenAI metrics: the conventions' labels and bounds, and the numbers of usages."""

import re
from dataclasses import replace

from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.engine import messages as m
from tests.dashboard.test_metrics import HIT, REPORT, usage
from tests.harness.metrics_text import samples

LABELS = (
    "gen_ai_operation_name=chat,gen_ai_provider_name=tasuki,"
    "gen_ai_request_model=qwen,gen_ai_response_model=qwen"
)
FIRST, AFTER, WHOLE = (
    f"gen_ai_server_{name}_seconds"
    for name in ("time_to_first_token", "time_per_output_token", "request_duration")
)


def told() -> dict[str, float]:
    exposition = Exposition("gen_ai", "qwen")
    for name in ("a", "b", "c", "d"):
        exposition.begin(m.RequestId(name), "chat")
    exposition.observe(m.Finished("a", m.FinishReason.STOP, usage(HIT)))
    exposition.observe(m.Finished("b", m.FinishReason.ABORT, usage(HIT)))
    no_answer = replace(usage(HIT), completion_tokens=0)
    exposition.observe(m.Finished("c", m.FinishReason.LENGTH, no_answer))
    exposition.observe(m.Rejected("d", m.RequestError(m.ErrorKind.TOO_LONG, "too long")))
    # The end of another front's request.
    exposition.observe(m.Finished("unknown", m.FinishReason.STOP, usage(HIT)))
    return samples(exposition.text(REPORT))


def test_answers_are_told_by_their_operation_and_model() -> None:
    seen = told()
    assert seen[f"{FIRST}_count{{{LABELS}}}"] == 1
    assert seen[f"{FIRST}_sum{{{LABELS}}}"] == 0.2
    assert seen[f"{AFTER}_sum{{{LABELS}}}"] == 0.8 / 4
    assert seen[f"{WHOLE}_count{{error_type=,{LABELS}}}"] == 2
    assert seen[f"{WHOLE}_count{{error_type=abort,{LABELS}}}"] == 1


def test_the_bounds_are_the_conventions() -> None:
    def bounds(name: str) -> list[float]:
        found = (re.match(rf"{name}_bucket.*le=([\d.]+)\}}$", key) for key in told())
        return sorted({float(one[1]) for one in found if one is not None})

    assert bounds(WHOLE) == [round(0.01 * 2**power, 2) for power in range(14)]
    assert bounds(AFTER) == [
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    ]
    assert bounds(FIRST) == [
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        10.0,
    ]


def test_no_other_dialect_has_them() -> None:
    for dialect in ("none", "vllm", "sglang"):
        exposition = Exposition(dialect, "qwen")
        exposition.begin(m.RequestId("a"), "chat")
        exposition.observe(m.Finished("a", m.FinishReason.STOP, usage(HIT)))
        assert not any(name.startswith("gen_ai") for name in samples(exposition.text(REPORT)))
