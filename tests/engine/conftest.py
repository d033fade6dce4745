"""A prefill and a decode engine for tests of one hand-over's outcome, and the tokens that engines
forward."""

from collections.abc import Iterator

import pytest

from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.runner.base import SampledTokens
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.engine.runner.rows import ResolvedRows
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import tiny_parts


@pytest.fixture
def pair() -> Iterator[EnginePair]:
    """Yield the pair and assert both engines at rest after a passed test."""
    with engine_pair(tiny_parts(), tiny_parts()) as both:
        yield both
        both.decode.assert_at_rest()
        both.prefill.assert_at_rest()


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the tokens in each forward computed by an engine of the test's process."""
    counts: list[int] = []
    plain = CpuRunner._compute

    def counting(self: CpuRunner, plan: ForwardPlan, rows: ResolvedRows) -> SampledTokens:
        counts.append(int(rows.lengths.sum()))
        return plain(self, plan, rows)

    monkeypatch.setattr(CpuRunner, "_compute", counting)
    return counts
