"""The number of drafts by measured times: as fast as the best number, and never slower than
none."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

from tasuki.engine.speculation.draft_limit import DraftLimit, FixedLimit, MeasuredLimit, StepShape
from tasuki.engine.speculation.drafting import Chances, Drafting, DraftSource

# A node of answers with drafts. Its steps take the time given by a table: no model, no clock.
Costs = Callable[[StepShape, int], float]
"""Seconds of a step, by its shape and its number."""
Holds = Callable[[int], float]
"""Probability of an accepted draft, by the token's number in the answer."""
_WAIT = 0.03
"""Seconds of the host in a step without drafts, if it does not plan ahead."""
_NOISE = 0.02


class KnowingDrafter:
    """A drafter that proposes the answer, 0, 1, 2, ..., wrong from the first rejected draft on.
    silent: returns whether it finds nothing after this many tokens."""

    source = DraftSource.TREE

    def __init__(self, holds: Holds, silent: Callable[[int], bool], draws: Iterator[float]) -> None:
        """Set the drafter up. draws: in [0, 1), evenly spread."""
        self._holds = holds
        self._silent = silent
        self._draws = draws

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        first = len(output)
        if self._silent(first):
            return []
        drafts = list(range(first, first + most))
        reached, drawn = 1.0, next(self._draws)
        for place, token in enumerate(drafts):
            reached *= self._holds(token)
            if drawn >= reached:
                return drafts[:place] + [-1] * (most - place)
        return drafts

    def verified(self, drafted: int, accepted: int) -> None:
        return None


@dataclass
class DraftingNode:
    """A simulated node. answers: number of answers that run all the time."""

    answers: int
    costs: Costs
    holds: Holds
    seed: int
    silent: Callable[[int], bool] = lambda token: False
    seconds: float = 0.0
    outputs: list[list[int]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    """Most drafts of a row, step by step."""

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)
        # Multiples of the golden ratio are evenly spread, so few steps show the mean.
        draws = ((self.seed + number * 0.6180339887) % 1 for number in count())
        together = Chances()
        self._drafting = [
            Drafting([KnowingDrafter(self.holds, self.silent, draws)], 7, None, together)
            for _ in range(self.answers)
        ]
        self.outputs = [[] for _ in range(self.answers)]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))

    def run(self, limit: DraftLimit, steps: int) -> float:
        """Return tokens a second."""
        drafted_before = False
        for step in range(steps):
            most = limit.next(self.answers, self._drafting)
            planned = not (most or drafted_before)
            lengths = self._proposed(limit, most, step)
            self.chosen.append(max(lengths, default=0))
            with_drafts = sum(map(bool, lengths))
            shape = StepShape(self.answers - with_drafts, with_drafts, 1 + max(lengths))
            seconds = self.costs(shape, step) * (1 + _NOISE * abs(self._chance.normal()))
            if not planned:
                seconds += _WAIT * self.costs(StepShape(self.answers, 0, 1), step)
            self.seconds += seconds
            # Other work of the host, independent of drafts.
            other = 3 if self._chance.random() < 0.003 else 1
            limit.completed(shape, self._complete(lengths), other * seconds, planned=planned)
            drafted_before = bool(with_drafts)
        return self.tokens / self.seconds

    def _proposed(self, limit: DraftLimit, most: int, step: int) -> list[int]:
        """Return the number of verified drafts of each answer."""
        self._drafts: list[tuple[int, ...]] = [()] * self.answers
        if not most:
            for place in range(step, step + limit.watched):
                row = place % self.answers
                self._drafting[row].watch(self.outputs[row])
            return [0] * self.answers
        found = [
            one.propose(output, most)
            for one, output in zip(self._drafting, self.outputs, strict=True)
        ]
        lengths = [(one, len(drafts)) for one, drafts in zip(self._drafting, found, strict=True)]
        worth = limit.of_step(self.answers, lengths)
        self._drafts = [drafts[:worth] for drafts in found]
        return [len(drafts) for drafts in self._drafts]

    def _complete(self, lengths: Sequence[int]) -> int:
        """Return the number of tokens from the step."""
        before = self.tokens
        for one, output, drafts in zip(self._drafting, self.outputs, self._drafts, strict=True):
            held = 0
            while held < len(drafts) and drafts[held] == len(output) + held:
                held += 1
            if drafts:
                one.verified(len(drafts), held)
            output += range(len(output), len(output) + held + 1)
        return self.tokens - before


WIDTHS = [2, 4]


def dense(shape: StepShape, step: int) -> float:
    """Return the ms of a large dense model's step on a GPU: weights once a graph, products past 150
    rows."""
    rows = shape.drafted * shape.tokens
    plain = 3.7 + 0.085 * shape.plain if shape.plain else 0.0
    drafted = 3.9 + 0.1 * shape.drafted + 0.02 * max(0, rows - 150) if shape.drafted else 0.0
    return plain + drafted


def one_by_one(shape: StepShape, step: int) -> float:
    """Return a cost proportional to the tokens, as on a small CPU."""
    return 1.0 * shape.plain + 0.99 * shape.drafted * shape.tokens


def growing(shape: StepShape, step: int) -> float:
    """Return a cost with growing contexts; with each new answer they are short again."""
    return dense(shape, step) + 0.1 * shape.answers * (step % 500) / 500


def off(answers: int, costs: Costs, steps: int) -> float:
    """Return tokens a second without drafts."""
    return DraftingNode(answers, costs, lambda token: 0.0, 1).run(FixedLimit(0), steps)


def best_fixed(answers: int, costs: Costs, holds: Callable[[int], float], steps: int) -> float:
    return max(
        DraftingNode(answers, costs, holds, 1).run(FixedLimit(most), steps) for most in (0, 1, 3)
    )


@pytest.mark.parametrize("answers", [1, 3, 16, 48])
@pytest.mark.parametrize("costs", [dense, one_by_one, growing])
def test_drafts_that_never_hold_cost_at_most_a_hundredth(answers: int, costs: Costs) -> None:
    node = DraftingNode(answers, costs, lambda token: 0.0, 2)
    assert node.run(MeasuredLimit(WIDTHS), 1200) >= 0.99 * off(answers, costs, 1200)


@pytest.mark.parametrize("answers", [1, 16])
def test_drafts_that_hold_and_gain_nothing_cost_at_most_a_hundredth(answers: int) -> None:
    node = DraftingNode(answers, one_by_one, lambda token: 0.7, 2)
    assert node.run(MeasuredLimit(WIDTHS), 1200) >= 0.99 * off(answers, one_by_one, 1200)


@pytest.mark.parametrize("answers", [1, 16, 48])
@pytest.mark.parametrize("costs", [dense, growing])
@pytest.mark.parametrize("likely", [0.35, 0.78, 0.95])
def test_it_gains_nearly_what_the_best_number_of_drafts_does(
    answers: int, costs: Costs, likely: float
) -> None:
    steps = 400
    node = DraftingNode(answers, costs, lambda token: likely, 2)
    found = node.run(MeasuredLimit(WIDTHS), steps)
    assert found >= 0.95 * best_fixed(answers, costs, lambda token: likely, steps)
    assert found >= 0.99 * off(answers, costs, steps)


@pytest.mark.parametrize("answers", [1, 8])
def test_it_follows_drafts_that_hold_for_a_while(answers: int) -> None:
    def holds(token: int) -> float:
        return 0.9 if token // 400 % 2 else 0.0

    node = DraftingNode(answers, dense, holds, 3)
    found = node.run(MeasuredLimit(WIDTHS), 1500)
    assert found >= 0.97 * best_fixed(answers, dense, holds, 1500)
    # If no drafts are accepted, they are computed only sometimes.
    assert 0.15 < np.mean([bool(most) for most in node.chosen]) < 0.8


def test_what_it_learned_of_many_answers_does_not_mislead_it_with_few() -> None:
    limit, likely = MeasuredLimit(WIDTHS), 0.6
    for answers in (40, 1, 12, 2):
        node = DraftingNode(answers, dense, lambda token: likely, 2)
        found = node.run(limit, 300)
        assert found >= 0.95 * best_fixed(answers, dense, lambda token: likely, 300)


def test_a_drafter_that_falls_silent_costs_nothing_and_is_taken_when_it_speaks() -> None:
    node = DraftingNode(1, dense, lambda token: 0.9, 3, silent=lambda token: token % 2000 < 1000)
    found = node.run(MeasuredLimit(WIDTHS), 2000)
    assert found >= 1.2 * off(1, dense, 2000)


@pytest.mark.parametrize("case", range(8))
def test_whatever_costs_and_drafts_are_it_is_never_slower(case: int, fresh_seed: int) -> None:
    generator = np.random.default_rng([fresh_seed, case])
    answers = int(generator.integers(1, 33))
    more = np.sort(generator.uniform(0, 1.5, 8))
    each, turn = generator.uniform(0, 0.2), int(generator.integers(20, 600))
    likely = generator.uniform(0, 1, 2)

    def costs(shape: StepShape, step: int) -> float:
        plain = 1 + float(each) * shape.answers
        return plain * (1 + (float(more[shape.tokens - 1]) if shape.drafted else 0.0))

    def holds(token: int) -> float:
        return float(likely[token // turn % 2])

    # So many steps that an initial loss of four steps is a small part.
    steps = 3000
    node = DraftingNode(answers, costs, holds, fresh_seed)
    assert node.run(MeasuredLimit([2, 4, 8]), steps) >= 0.99 * off(answers, costs, steps)


def test_drafts_of_one_answer_among_many_are_left_out_where_they_hold_up_the_others() -> None:
    limit, plain, drafting = MeasuredLimit(WIDTHS), 5.0, []
    for _ in range(16):
        drafter = KnowingDrafter(lambda token: 0.8, lambda token: False, iter(()))
        drafting.append(Drafting([drafter], 3))
    for _ in range(3):
        limit.completed(StepShape(16, 0, 1), 16, plain, planned=True)
    for width in WIDTHS:
        for _ in range(3):
            limit.completed(StepShape(0, 16, width), 40, plain + 1, planned=False)
            limit.completed(StepShape(15, 1, width), 18, plain + 4, planned=False)
    assert limit.next(16, drafting) == 3
    assert limit.of_step(16, [(one, 3) for one in drafting]) == 3
    assert limit.of_step(16, [(drafting[0], 3)]) == 0
    assert limit.of_step(16, [(one, 0) for one in drafting]) == 0


def test_a_request_that_drafts_badly_does_not_pay_for_others_before_it() -> None:
    together = Chances()
    for _ in range(50):
        together.verified(3, 3)
    own = Chances(together)
    assert own.gains(3)[-1] > 2.5
    for _ in range(8):
        own.verified(3, 0)
    assert own.gains(3)[-1] < 0.35
    for _ in range(8):
        own.verified(3, 3)
    assert own.gains(3)[-1] > 1.5


@pytest.mark.parametrize(("seconds", "looks"), [(1e-3, 15), (4e-3, 60), (1.0, 4 * 296)])
def test_looks_take_a_small_part_of_the_time_of_steps(seconds: float, looks: int) -> None:
    """The number of steps is the same for a small and a large model."""
    limit, found = MeasuredLimit(WIDTHS), 0
    for _ in range(300):
        found += limit.watched
        limit.completed(StepShape(1, 0, 1), 1, seconds, planned=True)
    assert looks - 2 <= found <= looks
