"""The leader's side of a forward: plans go to all ranks, and it draws some tokens for all.

Thread rule: the one thread of the forward. Every rank gets every plan in one order, and an error on
any rank is the node's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.runner.base import DrawnTokens, Event, InFlightForward, Runner
from tasuki.model.ops.sampling.reference import Sampled

from .collectives import Collectives
from .messages import checksum
from .ranks import Ranks


class LeaderDraws:
    """Tokens of rows whose requests change their logits, which the leader draws for every rank.

    What such a draw takes, a compiled grammar or the tokens before, the leader alone has: whether a
    grammar can be compiled in time may differ from process to process, and then ranks would. All
    other rows each rank draws itself, from the same bits. Thread rule: that of the forward.

    As DrawnTogether.
    """

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


@dataclass(frozen=True)
class LeaderForward:
    """`InFlightForward` of this rank; what was drawn is compared with what the others drew.
    collectives: check that every rank came to it; None: there is nothing to check."""

    number: int
    own: InFlightForward
    ranks: Ranks
    collectives: Collectives | None

    @property
    def has_ended(self) -> bool:
        return self.own.has_ended

    @property
    def idle_seconds(self) -> float:
        return self.own.idle_seconds

    @property
    def busy_seconds(self) -> float:
        return self.own.busy_seconds

    def result(self) -> DrawnTokens:
        try:
            drawn = self.own.result()
            if self.collectives is not None:
                self.collectives.check()
        except Exception as error:
            self.ranks.blame(error)
            raise
        self.ranks.ended(self.number)
        if len(drawn):
            self.ranks.drew(self.number, checksum(drawn))
        return drawn


class LeaderRunner:
    """Runs plans on all ranks: each goes to the followers first, and then to this rank's own
    runner.

    As any runner to the engine. Thread rule: one thread. Invariants: every rank gets every plan, in
    the same order; where a plan fails on any rank, ranks no longer agree, and no other one is run:
    an error is the node's, never one request's.
    """

    def __init__(
        self,
        runner: Runner,
        ranks: Ranks,
        collectives: Collectives | None = None,
    ) -> None:
        """runner: of this rank, whose collectives reach the others."""
        self._runner = runner
        self._collectives = collectives
        self._ranks = ranks
        self._launched = 0

    @property
    def ticks(self) -> int:
        return self._runner.ticks

    def prepare(self) -> None:
        self._runner.prepare()

    def check_device(self) -> None:
        self._ranks.check()
        self._runner.check_device()

    def record_event(self) -> Event:
        """On every rank: what a forward does behind its last collective, as a plan that only
        copies, another rank may still be at."""
        own, ranks, launched = self._runner.record_event(), self._ranks, self._launched
        return lambda: own() and ranks.have_run(launched)

    def launch(self, plan: ForwardPlan) -> LeaderForward:
        self._ranks.send(plan.encode())
        try:
            own = self._runner.launch(plan)
        except Exception as error:
            self._ranks.blame(error)
            raise
        self._launched = plan.number + 1
        return LeaderForward(plan.number, own, self._ranks, self._collectives)
