"""Copies of a tier on all ranks, as one copier: a copy has ended when it has on every rank, and is
good where it was on each.

Thread rule: as `Copier`, the engine loop's; ended() is called on the thread that reads what
followers send. Invariants: a follower is sent a copy behind all plans that the copy is behind here,
and takes both in that order; each rank is awaited once, whatever the others said; what is given up
here is cancelled there.
"""

import threading
from collections import deque
from dataclasses import dataclass

from tasuki.engine.parallel import messages as r
from tasuki.engine.parallel.ranks import Ranks
from tasuki.engine.tiers.copy_job import CopyJob, JobEnd
from tasuki.engine.tiers.copy_thread import CopyThread
from tasuki.engine.tiers.digests import TierDigests


@dataclass
class _Awaited:
    """left: ranks that have not ended it. end: the worst so far."""

    left: int
    end: JobEnd = JobEnd.DONE


class RankCopier:
    def __init__(self, own: CopyThread, tier: int, ranks: Ranks) -> None:
        """own: of the leader's arena. tier: its place."""
        self._own = own
        self._tier = tier
        self._ranks = ranks
        self._awaited: dict[int, _Awaited] = {}
        self._theirs: deque[tuple[int, JobEnd]] = deque()
        self._any = threading.Event()
        ranks.on_copy(tier, self._ended)

    @property
    def written(self) -> TierDigests:
        return self._own.written

    def begin(self, job: CopyJob) -> None:
        self._awaited[job.transfer] = _Awaited(len(self._ranks))
        self._ranks.post(r.BeginCopy(self._tier, job))
        self._own.begin(job)

    def cancel(self, transfer: int) -> None:
        self._ranks.post(r.CancelCopy(self._tier, transfer))
        self._own.cancel(transfer)

    def empty(self) -> None:
        self._ranks.post(r.EmptyTier(self._tier))
        self._own.empty()

    def _ended(self, transfer: int, end: JobEnd) -> None:
        self._theirs.append((transfer, end))
        self._any.set()

    def take_ended(self) -> list[tuple[int, JobEnd]]:
        self._any.clear()
        found = self._own.take_ended()
        while self._theirs:
            found.append(self._theirs.popleft())
        return [over for transfer, end in found if (over := self._count(transfer, end)) is not None]

    def _count(self, transfer: int, end: JobEnd) -> tuple[int, JobEnd] | None:
        """Where it was the last one."""
        awaited = self._awaited[transfer]
        awaited.left -= 1
        if awaited.end is JobEnd.DONE:
            awaited.end = end
        if awaited.left:
            return None
        del self._awaited[transfer]
        return transfer, awaited.end

    def wait(self, seconds: float) -> None:
        # This rank's own is mostly the last: the others are sent it first.
        if not self._any.is_set():
            self._own.wait(seconds)

    def close(self, seconds: float) -> bool:
        """Of this rank; the others end with their processes."""
        return self._own.close(seconds)
