"""The token ids before a row: joined, grown by prompts and steps, and taken back with drafts."""

from dataclasses import replace

import numpy as np
import pytest

from tasuki.engine.forward_plan import ForwardPlan, JoinedSequence, NewPages, RowFlag, plan_rows
from tasuki.engine.runner.recent_ids import RecentIds
from tasuki.engine.runner.rows import SequenceStates
from tasuki.model.ops.sampling.params import SamplingParams

TOKENS = list(range(100, 160))


class Runner:
    """A runner's record of one sequence with 60 known tokens, at batch index 4."""

    def __init__(self, wanted: int, start: int) -> None:
        self.states = SequenceStates(8)
        self.recent = RecentIds(wanted)
        self.wanted = wanted
        self.number = 0
        self.joined: tuple[JoinedSequence, ...] = (
            JoinedSequence(
                4,
                (4, 5),
                1,
                SamplingParams(),
                ids_before=tuple(TOKENS[max(start - wanted, 0) : start]),
            ),
        )

    def run(self, start: int, tokens: list[int], flag: int = 0) -> tuple[int, ...]:
        """Run a row of these tokens, and return the ids before it."""
        numbers = [4, start, len(tokens), 0, 1, 64, 1, flag]
        plan = ForwardPlan(
            self.number,
            joined=self.joined,
            new_pages=(NewPages(4, np.array([3], dtype=np.int32)),) if self.joined else (),
            rows=plan_rows(numbers),
            tokens=np.array(tokens, dtype=np.int32),
        )
        self.number, self.joined = self.number + 1, ()
        rows = self.states.apply(plan)
        slices = self.recent.with_ids(plan, rows, self.states.slices(plan, rows, {}))
        self.recent.record(rows, slices)
        return tuple(slices[0].ids_before)


@pytest.mark.parametrize("wanted", [1, 2, 5])
@pytest.mark.parametrize("start", [0, 1, 7])
def test_rows_of_a_prompt_have_the_ids_before(wanted: int, start: int) -> None:
    runner = Runner(wanted, start)
    for length in (1, 1, 3, 9, 1, 20):
        want = tuple(TOKENS[max(start - wanted, 0) : start])
        assert runner.run(start, TOKENS[start : start + length]) == want
        start += length


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_rejected_drafts_are_taken_back(accepted: int) -> None:
    runner = Runner(2, 9)
    runner.run(9, [109, 110])
    drafts = TOKENS[12 : 12 + accepted] + [0] * (3 - accepted)
    assert runner.run(11, [111, *drafts], RowFlag.VERIFIES.value) == (109, 110)
    start = 12 + accepted
    assert runner.run(start, [TOKENS[start]]) == (TOKENS[start - 2], TOKENS[start - 1])


def test_without_such_a_model_nothing_is_recorded() -> None:
    runner = Runner(0, 9)
    runner.joined = (replace(runner.joined[0], ids_before=()),)
    assert runner.run(9, [109]) == ()
    assert not runner.recent._recent
