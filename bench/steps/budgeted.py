"""The cost of thinking budgets in a decode step: with far budgets, with a closing every few steps,
and with all closings within the steps."""

from collections.abc import Sequence
from random import Random

from tasuki.bench.measure.report import Row
from tasuki.bench.measure.rig import Answer, Rig
from tasuki.bench.workload import BUDGET_RATIO, Point
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget

_SEED = 3
_CLOSING, _TAG = (198, 248069, 271), 248069
"""As Qwen3.5 closes a thought; where the vocabulary is smaller, tokens of it."""
_FAR = 1 << 20
STEPS_BETWEEN = 4
"""Two closings: 64 rows then think 256 tokens each."""


def start_far(rig: Rig, point: Point) -> list[Answer]:
    """Submit answers whose budgets no answer reaches; they all decode."""
    return _start(rig, point, [_FAR] * point.batch)


def start_closing(rig: Rig, point: Point, first: int) -> list[Answer]:
    """Submit answers of which one is closed every few steps. first: tokens of the first one."""
    budgets = [first + STEPS_BETWEEN * number for number in range(point.batch)]
    Random(_SEED).shuffle(budgets)
    return _start(rig, point, budgets)


def start_together(rig: Rig, point: Point, first: int) -> list[Answer]:
    """Submit answers that all have one budget. first: tokens of it."""
    return _start(rig, point, [first] * point.batch)


def _start(rig: Rig, point: Point, budgets: Sequence[int]) -> list[Answer]:
    vocab = rig.model.vocab
    closing, tag = tuple(token % vocab for token in _CLOSING), _TAG % vocab
    answers = [
        rig.submit(
            rig.prompt(point.context),
            point.context,
            thinking=ThinkingBudget(most, closing, tag),
        )
        for most in budgets
    ]
    rig.run_until_tokens(answers, 1)
    return answers


def budget_row(point: Point, what: str, seconds: float, plain: float) -> Row:
    """seconds, plain: the mean step's, with budgets and without."""
    return Row(
        f"step of {point.batch} x {point.context} tokens, {what}",
        seconds,
        target=f"<= {BUDGET_RATIO:g}x the step without",
        met=seconds <= BUDGET_RATIO * plain,
        extra={"times the step without": seconds / plain},
    )
