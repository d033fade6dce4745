"""Evidence needed before the ids granted to a writer may be used again.

There are three kinds of evidence and no others. The writer acknowledged its drain. The writer's
process is dead. The writer's lease ran out; a writer does not post after its lease. Knows neither
ids, processes nor the way of asking a writer. Pure: the caller gives the time.

Times are seconds of the owner's monotonic clock. The writer counts its lease from its question, the
owner from its answer, so the owner's count ends later.
"""

from dataclasses import dataclass
from enum import Enum

from tasuki.transfer.reports import Drain


class FenceReason(Enum):
    DRAIN_ACKNOWLEDGED = "the writer acknowledged that it drained"
    WRITER_DEAD = "the writer's process is dead"
    LEASE_EXPIRED = "the writer's lease expired"


@dataclass(frozen=True)
class FenceTerms:
    """Durations for fencing one writer, in seconds.

    lease: time from this node's last answer until the writer's last possible write, with the
    transport's retries. retry: longest time from a post until its arrival. settle: time from a
    process's death until all its bytes have arrived. acknowledge: limit for the answer to one
    question for the drain. again: time between two such questions. patience: limit for a fence;
    after it the connection is given up, so the lease runs out. broken: pause after endpoints could
    not be broken, before the fence is tried again. look: time between two checks of the evidence.
    """

    lease: float
    retry: float
    settle: float
    acknowledge: float
    patience: float
    again: float = 0.1
    broken: float = 1.0
    look: float = 0.01


@dataclass(frozen=True)
class WriterFacts:
    """Facts known about a writer now, as monotonic seconds.

    died: time when its process was first seen dead; None while it lives, or if it cannot be
    watched. answered: time of this node's last answer to its lease question; None while such
    answers go on.
    """

    died: float | None = None
    answered: float | None = None


ALIVE = WriterFacts()


class Fence:
    """Evidence for the end of writes by one transfer's writer. Evidence once found stays valid."""

    def __init__(self, terms: FenceTerms) -> None:
        self.terms = terms
        self._drained = False
        self._stopped_at: float | None = None

    def acknowledge(self, drain: Drain, now: float) -> None:
        """Record the writer's report of its drain. The first of each value counts."""
        if drain is Drain.DRAINED:
            self._drained = True
        elif self._stopped_at is None:
            self._stopped_at = now

    @property
    def answered(self) -> bool:
        """Return True if the writer has reported that its writes ended or were given up."""
        return self._drained or self._stopped_at is not None

    def reason(self, facts: WriterFacts, now: float) -> FenceReason | None:
        """Return the reason why the writer can write no more; None while it may still write."""
        terms = self.terms
        if self._drained:
            return FenceReason.DRAIN_ACKNOWLEDGED
        if self._stopped_at is not None and now - self._stopped_at > terms.retry:
            return FenceReason.LEASE_EXPIRED
        if facts.died is not None and now - facts.died >= terms.settle:
            return FenceReason.WRITER_DEAD
        if facts.answered is not None and now - facts.answered > terms.lease:
            return FenceReason.LEASE_EXPIRED
        return None
