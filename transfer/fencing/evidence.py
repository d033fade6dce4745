"""The fence: what must hold before ids that were granted to a writer may be used by anyone else.

There are three ways and nothing else: the writer acknowledged its drain; the writer's process is
proven dead; the writer's lease ran out, after which it does not post. Owns evidence of one writer.
Does not know rooms' ids.
Thread rule: a fence may be read from any thread; acknowledge() from one. Times are seconds of one
monotonic clock, this node's: the writer counts its lease from when it asked, we from when we were
asked, which is later.
"""

import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Self

from tasuki.transfer.node_identity import ProcessIdentity, _shares_network, _start_ticks


class FenceReason(Enum):
    DRAIN_ACKNOWLEDGED = "the writer acknowledged that it drained"
    WRITER_DEAD = "the writer's process is dead"
    LEASE_EXPIRED = "the writer's lease expired"


class Evidence(ABC):
    reason: FenceReason

    @abstractmethod
    def holds(self) -> bool:
        """Whether the writer can write no more. Once true, true for ever."""


class DrainAcknowledged(Evidence):
    reason = FenceReason.DRAIN_ACKNOWLEDGED

    def __init__(self) -> None:
        self._acknowledged = False

    def acknowledge(self) -> None:
        self._acknowledged = True

    def holds(self) -> bool:
        return self._acknowledged


class WriterDead(Evidence):
    """A pidfd on the writer, held from while it lived. settle: the transport's settle_seconds."""

    reason = FenceReason.WRITER_DEAD

    def __init__(
        self, pidfd: int, settle: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._poller = select.poll()
        self._poller.register(pidfd, select.POLLIN)
        self._pidfd: int | None = pidfd
        self._settle = settle
        self._clock = clock
        self._died: float | None = None

    @classmethod
    def watch(cls, writer: ProcessIdentity, settle: float) -> Self | None:
        """None where the writer is on another host, or cannot be watched: then this way is
        closed. So it is where its network is not ours: what a death leaves in the network's
        connections could not be seen."""
        if not writer.here() or not _shares_network(writer.pid):
            return None
        try:
            pidfd = os.pidfd_open(writer.pid)
        except OSError:
            return None
        try:
            # Read after the open: from here on the pidfd names this very process.
            same = _start_ticks(writer.pid) == writer.start_ticks
        except (OSError, ValueError, IndexError):
            same = False
        if not same:
            os.close(pidfd)
            return None
        return cls(pidfd, settle)

    def holds(self) -> bool:
        if self._died is None and self._pidfd is not None and self._poller.poll(0):
            self._died = self._clock()
        return self._died is not None and self._clock() - self._died >= self._settle

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent; evidence found before stays."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class LeaseExpired(Evidence):
    """last_renewal: when we last answered the writer, or None while we still do; margin: the lease
    plus the transport's retry_seconds."""

    reason = FenceReason.LEASE_EXPIRED

    def __init__(
        self,
        last_renewal: Callable[[], float | None],
        margin: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._last_renewal = last_renewal
        self._margin = margin
        self._clock = clock

    def holds(self) -> bool:
        renewed = self._last_renewal()
        return renewed is not None and self._clock() - renewed > self._margin


class PostingStopped(Evidence):
    """The writer's word that it posts no more, which does not say that all has landed.

    margin: the transport's retry_seconds: a write may land that long after it was posted."""

    reason = FenceReason.LEASE_EXPIRED

    def __init__(self, margin: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._margin = margin
        self._clock = clock
        self._since: float | None = None

    @property
    def acknowledged(self) -> bool:
        return self._since is not None

    def acknowledge(self) -> None:
        """The first one counts."""
        if self._since is None:
            self._since = self._clock()

    def holds(self) -> bool:
        return self._since is not None and self._clock() - self._since > self._margin


class Fence:
    """Any one piece of evidence is enough."""

    def __init__(self, evidence: Sequence[Evidence]) -> None:
        self._evidence = tuple(evidence)

    def reason(self) -> FenceReason | None:
        """Why the writer can write no more; None while it may."""
        return next((e.reason for e in self._evidence if e.holds()), None)
