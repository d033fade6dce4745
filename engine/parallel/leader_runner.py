"""Runs plans on all ranks: each goes to the followers first, and then to this rank's own runner.

As any runner to the engine. Thread rule: one thread. Invariants: every rank gets every plan, in the
same order; where a plan fails on any rank, ranks no longer agree, and no other one is run: an error
is the node's, never one request's.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.runner.base import Event, InFlightForward, Runner
from tasuki.engine.runner.drawn_tokens import DrawnTokens

from .checksum import checksum
from .ranks import Ranks


@dataclass(frozen=True)
class LeaderForward:
    """`InFlightForward` of this rank; what was drawn is compared with what the others drew. check:
    raises where another rank did not come to it."""

    number: int
    own: InFlightForward
    ranks: Ranks
    check: Callable[[], None]

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
            self.check()
        except Exception as error:
            self.ranks.blame(error)
            raise
        self.ranks.ended(self.number)
        if len(drawn):
            self.ranks.drew(self.number, checksum(drawn))
        return drawn


class LeaderRunner:
    def __init__(
        self,
        runner: Runner,
        ranks: Ranks,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """runner: of this rank, whose collectives reach the others. check: as of LeaderForward."""
        self._runner = runner
        self._check = check
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
        return LeaderForward(plan.number, own, self._ranks, self._check)
