"""A prefill and a decode engine for a test of what becomes of one hand-over; and what engines
forward."""

from collections.abc import Iterator

import pytest

from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.runner.base import DrawnTokens
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.engine.runner.rows import ResolvedRows
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import tiny_parts


@pytest.fixture
def pair() -> Iterator[EnginePair]:
    """Both at rest where the test ends well."""
    with engine_pair(tiny_parts(), tiny_parts()) as both:
        yield both
        both.decode.assert_at_rest()
        both.prefill.assert_at_rest()


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each forward that an engine of the test's process has computed."""
    counts: list[int] = []
    plain = CpuRunner._compute

    def counting(self: CpuRunner, plan: ForwardPlan, rows: ResolvedRows) -> DrawnTokens:
        counts.append(int(rows.lengths.sum()))
        return plain(self, plan, rows)

    monkeypatch.setattr(CpuRunner, "_compute", counting)
    return counts
