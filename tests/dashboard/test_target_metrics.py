"""Tests of metrics for requests with latency targets: each request counts once, as kept, missed or
refused."""

import pytest

from tasuki.dashboard.fleet.callers import Targets as FleetTargets
from tasuki.dashboard.fleet.callers import callers, callers_of
from tasuki.dashboard.fleet.samples import WANTED, RecentSamples, read_samples
from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.metrics.request_metrics import missed_targets
from tasuki.engine import messages as m
from tests.dashboard.test_metrics import REPORT
from tests.harness.engines import prompt, submit
from tests.harness.metrics_text import samples

NAME = "tasuki_target_requests_total"


def usage(targets: m.Targets | None) -> m.Usage:
    """Return a usage with the first token after 0.2 s and four others in 0.8 s."""
    return m.Usage(100, 5, None, None, "local", False, 0.2, 1.0, targets=targets)


@pytest.mark.parametrize(
    ("targets", "missed"),
    [
        (None, []),
        (m.Targets(0.2, 0.21, 1.0), []),
        (m.Targets(0.19), ["first_token"]),
        (m.Targets(per_token=0.1), ["per_token"]),
        (m.Targets(1.0, 0.1, 0.5), ["per_token", "answer"]),
    ],
)
def test_what_was_missed(targets: m.Targets | None, missed: list[str]) -> None:
    assert missed_targets(usage(targets)) == missed


ASKED = m.Targets(0.5)


def ended(node: Exposition, name: str, priority: int, end: m.Finished | m.Rejected) -> None:
    node.observe(submit(name, prompt(3), 4, caller="ann", priority=priority))
    node.observe(end)


def observed() -> Exposition:
    node = Exposition()

    def finish(name: str, priority: int, targets: m.Targets | None, reason: m.FinishReason) -> None:
        ended(node, name, priority, m.Finished(m.RequestId(name), reason, usage(targets)))

    def reject(name: str, kind: m.ErrorKind, targets: m.Targets | None) -> None:
        ended(node, name, 5, m.Rejected(m.RequestId(name), m.RequestError(kind, ""), targets))

    finish("kept", -3, ASKED, m.FinishReason.STOP)
    finish("nothing asked", 0, None, m.FinishReason.STOP)
    finish("missed", 0, m.Targets(0.1, 0.1), m.FinishReason.LENGTH)
    finish("left", 0, ASKED, m.FinishReason.ABORT)
    finish("left late", 0, m.Targets(0.1), m.FinishReason.ABORT)
    reject("refused", m.ErrorKind.OVERLOADED, ASKED)
    reject("waited", m.ErrorKind.QUEUE_TIMEOUT, ASKED)
    reject("wrong", m.ErrorKind.INVALID, ASKED)
    reject("nobody's", m.ErrorKind.QUEUE_TIMEOUT, None)
    return node


def test_each_is_counted_once_by_urgency_and_by_caller() -> None:
    shown = samples(observed().text(REPORT))
    counted = {key: value for key, value in shown.items() if key.startswith(NAME)}
    assert counted == {
        f"{NAME}{{outcome=kept,urgency=urgent}}": 1,
        f"{NAME}{{outcome=missed,urgency=usual}}": 2,
        f"{NAME}{{outcome=refused,urgency=later}}": 1,
        f"{NAME}{{outcome=missed,urgency=later}}": 1,
    }
    assert shown["tasuki_targets_missed_total{target=first_token}"] == 2
    assert shown["tasuki_targets_missed_total{target=per_token}"] == 1


def test_the_fleet_shows_a_caller_s_share_also_of_one_who_is_always_refused() -> None:
    recent = RecentSamples()
    node = Exposition()
    recent.take(0.0, read_samples(node.text(REPORT).decode(), WANTED))
    node = observed()
    for number in range(3):
        name = m.RequestId(f"r{number}")
        error = m.RequestError(m.ErrorKind.OVERLOADED, "")
        node.observe(submit(name, prompt(3), 4, caller="ben"))
        node.observe(m.Rejected(name, error, ASKED))
    recent.take(60.0, read_samples(node.text(REPORT).decode(), WANTED))
    rows = {row["caller"]: row for row in callers([callers_of(recent)], FleetTargets(), "")["rows"]}
    assert rows["ann"]["wanted"] == 5 and rows["ann"]["kept"] == 0.2
    assert rows["ann"]["refused"] == 0.2
    assert rows["ben"]["refused"] == 1.0 and rows["ben"]["kept"] == 0
