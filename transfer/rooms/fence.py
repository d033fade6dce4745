"""What must hold before ids that a writer was granted may be used by anyone else.

There are three ways and nothing else: the writer acknowledged its drain; the writer's process is
dead; the writer's lease ran out, after which it does not post. Knows neither ids, processes nor how
a writer is asked. Pure: the caller gives the time.
Times are seconds of one monotonic clock, the owner's: the writer counts its lease from its
question, the owner from its answer, which is later.
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
    """Durations of one writer, in seconds. lease: from our last answer until the writer can write
    no more, the transport's retries included. retry: from a post until it has landed. settle: from
    a death until what the dead process sent has come. acknowledge: one question for a drain may
    wait for its answer; again: between two such questions. patience: until a fence without an
    acknowledgement gives the connection up, so that the lease runs out. broken: until a fence whose
    severing failed is held again. look: between two looks at the evidence."""

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
    """What this node knows of a writer now. died: when its process was seen to be dead; None while
    it lives, or cannot be watched. answered: our last answer, once no other follows; None while
    answers go on."""

    died: float | None = None
    answered: float | None = None


ALIVE = WriterFacts()


class Fence:
    """The evidence about one room's writer. Once a reason holds it holds for ever."""

    def __init__(self, terms: FenceTerms) -> None:
        self.terms = terms
        self._drained = False
        self._stopped_at: float | None = None

    def acknowledge(self, drain: Drain, now: float) -> None:
        """Take the writer's word on what it posted. The first word of each sort counts."""
        if drain is Drain.DRAINED:
            self._drained = True
        elif self._stopped_at is None:
            self._stopped_at = now

    @property
    def answered(self) -> bool:
        """Whether the writer has said how its drain ended."""
        return self._drained or self._stopped_at is not None

    def reason(self, facts: WriterFacts, now: float) -> FenceReason | None:
        """Return why the writer can write no more; None while it may."""
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
