"""The leader's part of a forward on several ranks: it sends plans to all ranks, and samples some
tokens for all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.runner.base import Event, InFlightForward, Runner, SampledTokens
from tasuki.model.ops.sampling.reference import Sampled

from .collectives import Collectives
from .messages import checksum
from .ranks import Ranks


class LeaderDraws:
    """Sampling on the leader, for rows with adjusted logits on all ranks.

    Such sampling needs a compiled grammar or earlier tokens, held only by the leader. The
    compilation time of a grammar may differ between processes, and the ranks would then differ.
    Each rank samples all other rows itself, from the same bits. Thread rule: the thread of the
    forward.

    Implements SampledTogether.
    """

    def __init__(self, collectives: Collectives, rank: int) -> None:
        self._collectives = collectives
        self.leads = rank == 0

    def agreed(self, sampled: Sequence[Sampled]) -> list[Sampled]:
        own = [(token.token, token.logprob, token.margin) for token in sampled]
        leaders = self._collectives.of_leader(torch.tensor(own, dtype=torch.float64)).tolist()
        if self.leads:
            return [*sampled]
        return [Sampled(int(token), logprob, margin) for token, logprob, margin in leaders]

    def of_leader(self, sampled: Tensor) -> Tensor:
        return self._collectives.of_leader(sampled)


@dataclass(frozen=True)
class LeaderForward:
    """An `InFlightForward` of the leading rank. Its sampled tokens are compared with the other
    ranks'. number: the plan's number. own: the rank's own forward. collectives: its check() tests
    if every rank took part; None: no check is needed."""

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

    def result(self) -> SampledTokens:
        try:
            sampled = self.own.result()
            if self.collectives is not None:
                self.collectives.check()
        except Exception as error:
            self.ranks.blame(error)
            raise
        self.ranks.ended(self.number)
        if len(sampled):
            self.ranks.sampled(self.number, checksum(sampled))
        return sampled


class LeaderRunner:
    """A runner on all ranks: each plan goes to the followers first, then to this rank's own runner.

    The engine uses it like any runner. Thread rule: one thread. Invariants: every rank gets every
    plan, in the same order. If a plan fails on any rank, the ranks no longer agree, and no further
    plan runs. An error is the whole node's, never one request's.
    """

    def __init__(
        self, runner: Runner, ranks: Ranks, collectives: Collectives | None = None
    ) -> None:
        """runner: the runner of this rank, connected to the other ranks by its collectives."""
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
        """Record an event for the work of all ranks. This rank's own work is not enough: another
        rank may still run copies, or the end of a forward."""
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
