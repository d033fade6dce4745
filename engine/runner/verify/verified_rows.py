"""What was drawn behind the tokens of rows with drafts, on its way to the host, and how much of it
counts: a draw does only where the draft before it is what was drawn there.

Owns nothing. Thread rule: the engine loop's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        tops = {at: top for tokens in self.tops for at, top in tokens.of_rows()}
        first: dict[int, TopLogprobs] = {}
        behind: dict[int, tuple[Sampled, ...]] = {}
        for place, row in enumerate(self.rows.tolist()):
            found = self.adjusted.get(place)
            if found is None:
                found = self._counted(place, tops)
            token, *more = found
            drawn.tokens[row] = token.token
            drawn.logprobs[row], drawn.margins[row] = token.logprob, token.margin
            if token.top:
                first[row] = token.top
            behind[row] = tuple(more)
        return first, behind

    def _counted(self, place: int, tops: Mapping[int, TopLogprobs]) -> list[Sampled]:
        first, floats = place * self.width, self.drawn.view(torch.float32)
        drafts = self.ids[first + 1 : first + int(self.lengths[place])].tolist()
        found: list[Sampled] = []
        for at in range(first, first + len(drafts) + 1):
            token = int(self.drawn[0, at])
            logprob, margin = float(floats[1, at]), float(floats[2, at])
            found.append(Sampled(token, logprob, margin, tops.get(at, ())))
            if len(found) > len(drafts) or token != drafts[len(found) - 1]:
                break
        return found
