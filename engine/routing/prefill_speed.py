"""How fast an engine computes prompts, learnt from its forwards. Thread rule: the engine loop's."""

from collections.abc import Iterable

from tasuki.routing.prefill_seconds import PrefillSeconds

from .cost_learner import LineFit
from .cost_model import Line

ASSUMED = Line(0.01, 1e-4)
"""Seconds of a forward and of each of its tokens, until some were measured."""


class PrefillSpeed:
    """A token is the unit of work; one behind others costs more, by what attention reads of each of
    them."""

    def __init__(self, attention_cost: float, chunk_tokens: int) -> None:
        """attention_cost: of a token for each before it, as a part of its other work. chunk_tokens:
        of a forward, at most."""
        self._attention_cost = attention_cost
        self._chunk_tokens = chunk_tokens
        self._forwards = LineFit()

    def add(self, parts: Iterable[tuple[int, int]], seconds: float) -> None:
        """A forward of these parts of prompts, [first, last) tokens each, took so long alone."""
        work = sum(self._work(last) - self._work(first) for first, last in parts)
        if work > 0:
            self._forwards.add(work, seconds)

    @property
    def seconds(self) -> PrefillSeconds:
        line = self._forwards.line() or ASSUMED
        return PrefillSeconds(
            line.fixed,
            line.each + line.fixed / self._chunk_tokens,
            line.each * self._attention_cost,
        )

    def _work(self, tokens: int) -> float:
        return tokens + self._attention_cost * tokens * tokens / 2
