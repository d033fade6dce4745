"""What was drawn behind the tokens of rows with drafts, on its way to the host, and how much of it
counts: a draw does only where the draft before it is what was drawn there.

Owns nothing. Thread rule: the engine loop's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine.forward_plan import Ints
from tasuki.engine.runner.drawn_tokens import DrawnTokens
from tasuki.engine.runner.eager_sampler import TopTokens
from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.model.ops.sampling.reference import Sampled


@dataclass(frozen=True)
class VerifiedRows:
    """Of the plan's rows of these numbers. lengths: tokens of each; a row has `width` tokens in
    `ids`, of which those behind the first are drafts, in `drawn`, which is as DeviceBatch.read()
    has it, and in `tops`. adjusted: all that counts of some of the rows, by their place in `rows`,
    as drawn one after another."""

    rows: NDArray[np.int64]
    lengths: Ints
    ids: Tensor
    width: int
    drawn: Tensor
    tops: Sequence[TopTokens]
    adjusted: Mapping[int, Sequence[Sampled]]

    def put(
        self, drawn: DrawnTokens
    ) -> tuple[dict[int, TopLogprobs], dict[int, tuple[Sampled, ...]]]:
        """Give each row of `drawn` its first token; the likeliest tokens of that draw, and the
        draws behind drafts that hold, by rows. REQUIRES: the stream has come this far."""
        first: dict[int, TopLogprobs] = {}
        behind: dict[int, tuple[Sampled, ...]] = {}
        for row, (token, *more) in zip(self.rows.tolist(), self._counted, strict=True):
            drawn.tokens[row] = token.token
            drawn.logprobs[row], drawn.margins[row] = token.logprob, token.margin
            if token.top:
                first[row] = token.top
            behind[row] = tuple(more)
        return first, behind

    def tokens_of(self, places: Sequence[int]) -> list[list[int]]:
        """Return the tokens that count of each of the rows in those places. REQUIRES: as put()."""
        return [[token.token for token in self._counted[place]] for place in places]

    @cached_property
    def _counted(self) -> list[Sequence[Sampled]]:
        """All of each row that counts."""
        tops = {at: top for tokens in self.tops for at, top in tokens.of_rows()}
        # Columns of all rows become Python's numbers at once: the device waits meanwhile.
        shape = (len(self.rows), self.width)
        tokens = self.drawn[0, : len(self.rows) * self.width].numpy().reshape(shape)
        ids = self.ids[: tokens.size].numpy().reshape(shape)
        holds = tokens[:, :-1] == ids[:, 1:]
        holds &= np.arange(1, self.width) < self.lengths[:, None]
        counts = 1 + np.logical_and.accumulate(holds, axis=1).sum(axis=1)
        listed = self.drawn[0].tolist()
        logprobs, margins = self.drawn[1:].view(torch.float32).tolist()
        found: list[Sequence[Sampled]] = []
        for place, count in enumerate(counts.tolist()):
            own = range(place * self.width, place * self.width + count)
            draws = [Sampled(listed[at], logprobs[at], margins[at], tops.get(at, ())) for at in own]
            found.append(self.adjusted.get(place) or draws)
        return found
