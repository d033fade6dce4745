"""How likely drafts hold: by place, each where those before it held, newer ones counting more.

Owns what became of the last ones. Thread rule: the engine loop's.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

_PRIOR_WEIGHT = 2.0
"""What others show counts as much as so many drafts ahead of the request's own, and fades too."""
_FADES = 0.8
"""What a draft counts once the next one of its place was verified; of one request."""
_FADES_TOGETHER = 0.98
_FIRST_GUESS = 0.6
"""Before anything was verified: that a try is worth its time, and a few failures end it."""


class Chances:
    def __init__(self, prior: "Chances | None" = None) -> None:
        """prior: of others like it, which stand for what it has not seen yet, and learn from it."""
        self._prior = prior
        self._fades = _FADES_TOGETHER if prior is None else _FADES
        self._tried: list[float] = []
        self._held: list[float] = []
        self._found = 1.0
        self._gains: list[float] | None = None

    def verified(self, drafted: int, held: int) -> None:
        """So many drafts stood in a row, at least one, of which the first ones held."""
        if self._prior is not None:
            self._prior.verified(drafted, held)
        self._gains = None
        while len(self._tried) < drafted:
            self._held.append(_PRIOR_WEIGHT * self._likely(len(self._tried)))
            self._tried.append(_PRIOR_WEIGHT)
        for place in range(min(drafted, held + 1)):
            self._tried[place] = self._tried[place] * self._fades + 1
            self._held[place] = self._held[place] * self._fades + (place < held)

    def looked(self, *, found: bool) -> None:
        """Drafts were looked for."""
        self._found = self._found * _FADES + found * (1 - _FADES)

    @property
    def found(self) -> float:
        """How likely there are drafts when they are looked for."""
        return self._found

    def gains(self, most: int) -> Sequence[float]:
        """How many of 1, 2, .. `most` drafts of a row hold, in the mean."""
        if self._gains is None or len(self._gains) < most:
            reached = accumulate((self._likely(place) for place in range(most)), mul)
            self._gains = list(accumulate(reached))
        return self._gains[:most]

    def _likely(self, place: int) -> float:
        if place < len(self._tried):
            return self._held[place] / self._tried[place]
        return _FIRST_GUESS if self._prior is None else self._prior._likely(place)
