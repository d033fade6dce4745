"""One peer as a writer into this node's arena, over one connection: what proves that it writes no
more.

Owns the pidfd on the writer's process and the time of our last answer. Knows no rooms and no
messages. Thread rule: one thread writes, any reads. Invariant: after lose() no answer counts, so
that the writer's lease runs out.
"""

import time
from collections.abc import Callable

from tasuki.transfer.node_identity import ProcessIdentity

from .evidence import Evidence, LeaseExpired, WriterDead


class WriterLife:
    def __init__(
        self,
        process: ProcessIdentity,
        lease_seconds: float,
        retry_seconds: float,
        settle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """lease_seconds: the writer's own word on how long it posts after it last asked and was
        answered. retry_seconds, settle_seconds: the transport's."""
        self.margin = lease_seconds + retry_seconds
        """How long after our last answer the writer may still write."""
        self.severed = False
        """Whether the transport broke all that led here after this writer was lost. Endpoints do
        not come back by themselves, so it has none left."""
        self._clock = clock
        self._answered = clock()
        self._lost = False
        self._dead = WriterDead.watch(process, settle_seconds)

    def answering(self) -> None:
        """Call when the writer has asked and before it is answered."""
        if not self._lost:
            self._answered = self._clock()

    def lose(self) -> None:
        """Idempotent. REQUIRES: nothing is answered any more."""
        self._lost = True

    def evidence(self) -> list[Evidence]:
        """Of the writer's death and of its lease's end."""
        expired = LeaseExpired(self._last_renewal, self.margin, self._clock)
        return [expired] if self._dead is None else [self._dead, expired]

    def _last_renewal(self) -> float | None:
        return self._answered if self._lost else None
