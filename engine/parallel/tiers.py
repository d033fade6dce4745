"""Tiers below arenas of several ranks: each rank copies its own part of every page and state."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasuki.engine.messages.types import Message
from tasuki.engine.tiers.copy_job import CopyJob, JobEnd
from tasuki.engine.tiers.copy_thread import CopyThread
from tasuki.engine.tiers.digests import TierDigests
from tasuki.utils.system import name_this_thread

from . import messages as r
from .ranks import Ranks

_LOOK_SECONDS = 0.002
"""Seconds between checks of the copiers for ended copies, while any is in progress."""
_CLOSE_SECONDS = 5.0


SendToLeader = Callable[[Message], None]
"""A function to send a message to the leader. Raises OSError or LeaderGone without one."""


class FollowerTiers:
    """A follower's part of the tiers. It runs the leader's copies, and reports the result of each.

    Owns one copier for each tier, and one thread for sending results. Thread rule: handle() belongs
    to the thread of the plans, so a copy begins after all earlier plans.
    """

    def __init__(self, copiers: Sequence[CopyThread], send: SendToLeader) -> None:
        """copiers: one copier for each tier, the nearest first. send: sends a message to the
        leader; raises OSError or LeaderGone if the leader is gone."""
        self._copiers = copiers
        self._send = send
        self._under_way = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._report, name="tasuki-ends", daemon=True)
        self._thread.start()

    def handle(self, message: r.TierMessage) -> None:
        copier = self._copiers[message.tier]
        match message:
            case r.BeginCopy(job=job):
                copier.begin(job)
                with self._changed:
                    self._under_way += 1
                    self._changed.notify()
            case r.CancelCopy(transfer=transfer):
                copier.cancel(transfer)
            case r.EmptyTier():
                copier.empty()

    def close(self) -> None:
        """End all copies in progress, within a few seconds for each tier."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        for copier in self._copiers:
            copier.close(_CLOSE_SECONDS)

    def _report(self) -> None:
        name_this_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._under_way > 0 or self._closing)
                if self._closing:
                    return
            ended = [
                r.CopyEnded(tier, transfer, end)
                for tier, copier in enumerate(self._copiers)
                for transfer, end in copier.take_ended()
            ]
            for message in ended:
                try:
                    self._send(message)
                except Exception:
                    return  # The leader is gone: the reader of its socket ends this process.
            with self._changed:
                self._under_way -= len(ended)
            if not ended:
                time.sleep(_LOOK_SECONDS)


@dataclass
class _Awaited:
    """A copy in progress on several ranks. left: number of ranks still copying. end: the first
    failure so far, else DONE."""

    left: int
    end: JobEnd = JobEnd.DONE


class RankCopier:
    """The copier of a tier on all ranks, used like a copier on one. A copy has ended when it has on
    every rank, and succeeds only if it did on each.

    Thread rule: see `Copier`, the engine loop's. _ended() is called on the thread reading
    followers' messages. Invariants: a follower gets a copy after all earlier plans, and takes both
    in this order. Each rank's result is awaited once, independent of the others'. A copy given up
    on the leader is cancelled on the followers.
    """

    def __init__(self, own: CopyThread, tier: int, ranks: Ranks) -> None:
        """own: the leader's copier of the tier. tier: the tier's number."""
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
        """Count one rank's result of a copy. Return the transfer number and the copy's result if it
        was the last rank, else None."""
        awaited = self._awaited[transfer]
        awaited.left -= 1
        if awaited.end is JobEnd.DONE:
            awaited.end = end
        if awaited.left:
            return None
        del self._awaited[transfer]
        return transfer, awaited.end

    def wait(self, seconds: float) -> None:
        # This rank's own copy mostly ends last, because the others get theirs first.
        if not self._any.is_set():
            self._own.wait(seconds)

    def close(self, seconds: float) -> bool:
        """Close this rank's copier; return False if it has not ended within `seconds`. The
        followers' copiers end with their processes."""
        return self._own.close(seconds)
