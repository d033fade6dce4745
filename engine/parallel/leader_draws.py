"""Tokens of rows whose requests change their logits, which the leader draws for every rank.

What such a draw takes, a compiled grammar or the tokens before, the leader alone has: whether a
grammar can be compiled in time may differ from process to process, and then ranks would. All other
rows each rank draws itself, from the same bits. Thread rule: that of the forward.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tasuki.model.ops.sampling.reference import Sampled

from .collectives import Collectives


class LeaderDraws:
    """As DrawnTogether."""

    def __init__(self, collectives: Collectives, rank: int) -> None:
        self._collectives = collectives
        self.leads = rank == 0

    def agreed(self, drawn: Sequence[Sampled]) -> list[Sampled]:
        own = [(token.token, token.logprob, token.margin) for token in drawn]
        leaders = self._collectives.of_leader(torch.tensor(own, dtype=torch.float64)).tolist()
        if self.leads:
            return [*drawn]
        return [Sampled(int(token), logprob, margin) for token, logprob, margin in leaders]

    def of_leader(self, drawn: Tensor) -> Tensor:
        return self._collectives.of_leader(drawn)
