"""Learns the rates of one engine from what its requests took.

Owns decayed sums; a clock it does not have: callers bring durations. Thread rule: the engine loop.
Invariants: a line is given only after LEAST samples; where none came within FRESH decisions the
next one has no line, so that what is no longer tried is tried again by the constant, once: what
takes long to be tried is not tried by all who come meanwhile. A line never falls with the amount.
"""

from dataclasses import dataclass, field

from .cost_model import Line, Rates

LEAST = 8
FRESH = 64
_KEPT = 0.95
"""Of a sample's weight when the next one comes."""
_SPREAD = 0.1
"""Below that relative deviation of the amounts a slope is taken for noise."""


class LineFit:
    """Least squares over (amount, seconds), older samples weighing less."""

    def __init__(self) -> None:
        self.samples = 0
        self.verdicts_since = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """REQUIRES: amount > 0, seconds >= 0."""
        self.samples += 1
        self.verdicts_since = 0
        self._weight = _KEPT * self._weight + 1.0
        self._x = _KEPT * self._x + amount
        self._y = _KEPT * self._y + seconds
        self._xx = _KEPT * self._xx + amount * amount
        self._xy = _KEPT * self._xy + amount * seconds

    def line(self) -> Line | None:
        if self.samples < LEAST or self.verdicts_since > FRESH:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        through_origin = Line(0.0, mean_y / mean_x)
        if variance < (_SPREAD * mean_x) ** 2:
            return through_origin
        each = max(0.0, (self._xy / self._weight - mean_x * mean_y) / variance)
        fixed = mean_y - each * mean_x
        return through_origin if fixed < 0 else Line(fixed, each)


@dataclass
class CostLearner:
    """One fit for each of Rates' lines, which see."""

    here: LineFit = field(default_factory=LineFit)
    there: LineFit = field(default_factory=LineFit)
    sent: LineFit = field(default_factory=LineFit)
    pulled: LineFit = field(default_factory=LineFit)
    forwarded: LineFit = field(default_factory=LineFit)

    def rates(self) -> Rates:
        return Rates(*(fit.line() for fit in self._fits))

    def judged(self) -> None:
        """A decision was given: what it did not choose grows stale."""
        for fit in self._fits:
            stale = fit.verdicts_since > FRESH
            fit.verdicts_since = 0 if stale else fit.verdicts_since + 1

    @property
    def _fits(self) -> tuple[LineFit, ...]:
        """In the order of Rates."""
        return self.here, self.there, self.sent, self.pulled, self.forwarded
