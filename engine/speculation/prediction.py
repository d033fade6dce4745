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
        new = output[self._seen :]
        for token in new:
            self._follow(token)
        self._seen = len(output)
        if new and self._missed > 1:
            self._find(output[-_ANCHOR:])
        if self._missed > 1:
            return []
        found: list[int] = self._prediction[self._place : self._place + most].tolist()
        return found

    def verified(self, drafted: int, accepted: int) -> None:
        """The answer shows it."""

    def _follow(self, token: int) -> None:
        """The answer's next one; nothing to follow once the place is lost."""
        if self._missed > 1:
            return
        place = self._place
        goes_along = place < len(self._prediction) and self._prediction[place] == token
        self._place, self._missed = place + 1, 0 if goes_along else self._missed + 1

    def _find(self, last: Sequence[int]) -> None:
        """Go on behind the place nearest to this one at which these tokens stand, if they do."""
        first = max(0, self._place - _BACK)
        near = self._prediction[first : self._place + _AHEAD]
        if len(last) < _ANCHOR or len(near) < _ANCHOR:
            return
        windows = np.lib.stride_tricks.sliding_window_view(near, _ANCHOR)
        places = (windows == np.asarray(last, dtype=np.int32)).all(axis=1).nonzero()[0]
        if len(places):
            places += first + _ANCHOR
            self._place, self._missed = int(places[np.abs(places - self._place).argmin()]), 0
