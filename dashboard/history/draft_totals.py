"""How many tokens of answers were drafted and held since the start, by what proposed them, and what
fewer drafts a step would have done.

Owns the sums, by place in a step's drafts; usages are those of events, which may be older than
drafts are. The first drafts of a step hold or not whatever else was drafted behind them, so what
fewer would have done is read from the sums; that other steps would then begin at other tokens is
left out, so it is an estimate.
"""

from collections import Counter
from itertools import accumulate, islice
from typing import Any

_PLACES = 8
"""For so many it is said what fewer drafts would have done."""


class DraftTotals:
    def __init__(self) -> None:
        self._drafted: dict[str, Counter[int]] = {}
        self._accepted: dict[str, Counter[int]] = {}

    def add(self, usage: dict[str, Any]) -> None:
        """Of a request that ended."""
        for use in usage.get("drafts", ()):
            for sums, name in ((self._drafted, "drafted"), (self._accepted, "accepted")):
                sums.setdefault(use["source"], Counter()).update(dict(enumerate(use[name])))

    def answer(self) -> dict[str, dict[str, Any]]:
        """By source: drafted and accepted tokens; tokens_a_step: of one that it drafted, with the
        token that is no draft, had at most 1, 2 ... been drafted."""
        return {source: self._of(source) for source in self._drafted}

    def _of(self, source: str) -> dict[str, Any]:
        drafted, accepted = self._drafted[source], self._accepted[source]
        steps = max(1, drafted[0])
        held = accumulate(accepted[place] for place in range(len(drafted)))
        return {
            "drafted": drafted.total(),
            "accepted": accepted.total(),
            "tokens_a_step": [1 + tokens / steps for tokens in islice(held, _PLACES)],
        }
