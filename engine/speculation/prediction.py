"""Drafts from what the request said its answer would be, as OpenAI's `prediction`: an edited file
is most often the file.

Owns its place in the prediction. While the answer goes along, what follows there is proposed. Where
it differs in one token, the place moves on by one, as if that token had replaced another; where the
next one differs too, nothing is proposed until the answer's last tokens stand in the prediction
somewhere. So a difference costs the drafts of a step or two, whatever it is.
"""

from collections.abc import Sequence

import numpy as np

from tasuki.engine.forward_plan import Ints

from .drafter import DraftSource

_ANCHOR = 4
"""Tokens by which a lost place is found again."""
_BACK, _AHEAD = 256, 2048
"""Tokens within which it is looked for, so that no prediction makes a step long."""


class PredictionDrafter:
    def __init__(self, prediction: Ints) -> None:
        self._prediction = prediction
        self._place = 0
        self._missed = 0
        """Tokens since the answer went along."""
        self._seen = 0

    @property
    def source(self) -> DraftSource:
        return DraftSource.PREDICTION

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        for end in range(self._seen + 1, len(output) + 1):
            self._follow(output[max(0, end - _ANCHOR) : end])
        self._seen = len(output)
        if self._missed > 1:
            return []
        found: list[int] = self._prediction[self._place : self._place + most].tolist()
        return found

    def verified(self, drafted: int, accepted: int) -> None:
        """The answer shows it."""

    def _follow(self, last: Sequence[int]) -> None:
        """The answer's last token, behind those before it."""
        if self._missed < 2:
            place = self._place
            goes_along = place < len(self._prediction) and self._prediction[place] == last[-1]
            self._place, self._missed = place + 1, 0 if goes_along else self._missed + 1
        if self._missed > 1:
            found = self._find(last)
            if found is not None:
                self._place, self._missed = found, 0

    def _find(self, last: Sequence[int]) -> int | None:
        """Behind the place nearest to this one at which these tokens stand."""
        first = max(0, self._place - _BACK)
        near = self._prediction[first : self._place + _AHEAD]
        if len(last) < _ANCHOR or len(near) < _ANCHOR:
            return None
        windows = np.lib.stride_tricks.sliding_window_view(near, _ANCHOR)
        places = (windows == np.asarray(last, dtype=np.int32)).all(axis=1).nonzero()[0]
        if not len(places):
            return None
        places += first + _ANCHOR
        return int(places[np.abs(places - self._place).argmin()])
