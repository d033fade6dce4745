"""Copies from the arena to a tier and back, on a thread of their own.

Owns the thread and the digests of its writes. Knows ids; decides nothing. Thread rule: begin(),
cancel(), take_ended(), wait() and close() belong to the engine loop. Segments and digests belong to
the thread.

Invariants:
1. A job that was begun ends once, with any result, and touches no memory from then on.
2. Loads go before writes: a write lets loads pass between two segments, and stops if it is
   cancelled.
3. A segment without an end blocks only itself. Jobs behind it, and later ones, end as broken or as
   cancelled.
4. A load counts only if each page and the state have the digest of their write. A target has no
   digest while it is being written.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tasuki.utils.signatures import Clock, Notice
from tasuki.utils.system import name_this_thread, shorten_lock_turns

from .copy_job import CopyJob, Direction, JobEnd
from .digests import TierDigests
from .segment_copies import RunningCopy, SegmentCopies, StillMoving

log = logging.getLogger(__name__)

STUCK_SECONDS = 10.0
"""Longest seconds for one segment of a copy. After them the jobs queued behind it are given up."""


class WriteJournal(Protocol):
    """A journal of the contents of a tier kept after its node's end. Its methods raise nothing:
    after a restart, entries missing in the journal are not found."""

    def taken(self, job: CopyJob) -> None:
        """Record the write's target pages and slot as about to be overwritten."""

    def kept(self, job: CopyJob, written: TierDigests) -> None:
        """Record the write's targets as completely written. written: their digests."""

    def emptied(self) -> None:
        """Record all earlier entries as invalid."""


class CopyThread:
    def __init__(
        self,
        segments: SegmentCopies,
        name: str = "host",
        clock: Clock = time.monotonic,
        journal: WriteJournal | None = None,
    ) -> None:
        """name: the tier's name. clock: returns seconds, to measure segments. journal: the journal
        of a tier kept after its node's end; None for other tiers."""
        self._segments = segments
        self._name = name
        self._clock = clock
        self._journal = journal
        self.written = TierDigests()
        self._segment_began: float | None = None
        self._broke = False
        self._asked = threading.Condition()
        self._waiting: dict[Direction, deque[CopyJob]] = {each: deque() for each in Direction}
        self._cancelled: set[int] = set()
        self._is_emptied = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._ended: deque[tuple[int, JobEnd]] = deque()
        self._any_ended = threading.Event()

    def begin(self, job: CopyJob) -> None:
        """Begin a copy job. After close() it is cancelled immediately. REQUIRES: earlier launched
        work has ended, if it writes the job's sources or reads its targets for an earlier owner."""
        with self._asked:
            if self._closing:
                self._ended.append((job.transfer, JobEnd.CANCELLED))
                return
            if self._is_stuck:
                self._ended.append((job.transfer, JobEnd.BROKEN))
                return
            self._waiting[job.direction].append(job)
            self._start()
            self._asked.notify()

    def _start(self) -> None:
        if self._thread is None:
            # Segments begin between steps of the engine's loop, and both run Python.
            shorten_lock_turns()
            name = f"tasuki-{self._name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def cancel(self, transfer: int) -> None:
        """Cancel a copy job: immediately if it has not begun, else soon. The job may already have
        ended with another result. transfer: the job's number."""
        with self._asked:
            for jobs in self._waiting.values():
                for job in jobs:
                    if job.transfer == transfer:
                        jobs.remove(job)
                        self._ended.append((transfer, JobEnd.CANCELLED))
                        return
            self._cancelled.add(transfer)

    def empty(self) -> None:
        """Invalidate all earlier writes to the tier. The journal records this before any later job;
        without a journal, do nothing."""
        if self._journal is None:
            return
        with self._asked:
            self._is_emptied = True
            self._start()
            self._asked.notify()

    def take_ended(self) -> list[tuple[int, JobEnd]]:
        """Return the jobs ended since the last call, each with its result."""
        self._any_ended.clear()
        self._end_stuck()
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        with self._asked:
            self._cancelled.difference_update(transfer for transfer, _ in found)
        return found

    def _end_stuck(self) -> None:
        with self._asked:
            if not self._is_stuck or not any(self._waiting.values()):
                return
            count = 0
            for jobs in self._waiting.values():
                count += len(jobs)
                self._ended.extend((job.transfer, JobEnd.BROKEN) for job in jobs)
                jobs.clear()
        log.error(
            "a segment of a copy with tier %s has not ended within %g s: %d copies behind it are "
            "given up",
            *(self._name, STUCK_SECONDS, count),
        )

    @property
    def _is_stuck(self) -> bool:
        began = self._segment_began
        return began is not None and self._clock() > began + STUCK_SECONDS

    def wait(self, seconds: float) -> None:
        """Wait until take_ended() has a job to return, for at most `seconds`."""
        self._any_ended.wait(seconds)

    def close(self, seconds: float) -> bool:
        """End all jobs as cancelled, then the thread. Return False if a segment does not end within
        `seconds`. Idempotent."""
        with self._asked:
            self._closing = True
            self._asked.notify()
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        name_this_thread()
        while (job := self._next()) is not None:
            self._end(job)

    def _next(self) -> CopyJob | None:
        """Return the next job; None if the tier closes and no job waits."""
        while True:
            self._say_emptied()
            with self._asked:
                if self._is_emptied:
                    continue
                if any(self._waiting.values()):
                    return (self._waiting[Direction.UP] or self._waiting[Direction.DOWN]).popleft()
                if self._closing:
                    return None
                self._asked.wait()

    def _say_emptied(self) -> None:
        with self._asked:
            is_due, self._is_emptied = self._is_emptied, False
        if is_due and self._journal is not None:
            with self._segment():
                self._journal.emptied()

    def _end(self, job: CopyJob) -> None:
        copy = self._load if job.direction is Direction.UP else self._write
        try:
            end = copy(job)
        except StillMoving:
            # The copy never ends. A load by it is late, and quarantined for good.
            log.exception(
                "a copy %s, tier %s, cannot be waited for", job.direction.value, self._name
            )
            return
        except Exception:
            # Later failures are only counted, so a lost disk does not fill the log.
            if not self._broke:
                what = job.direction.value
                log.exception("a copy %s, tier %s, broke: it is of no use", what, self._name)
            end = JobEnd.BROKEN
        self._broke = end is JobEnd.BROKEN
        self._ended.append((job.transfer, end))
        self._any_ended.set()

    def _is_unwanted(self, job: CopyJob) -> bool:
        with self._asked:
            return self._closing or job.transfer in self._cancelled

    def _give_way(self) -> None:
        while True:
            with self._asked:
                if not self._waiting[Direction.UP]:
                    return
                load = self._waiting[Direction.UP].popleft()
            self._end(load)

    def _write(self, job: CopyJob) -> JobEnd:
        assert job.slot is not None
        if self._journal is not None:
            with self._segment():
                self._journal.taken(job)
        for _, target in job.pages:
            self.written.pages.pop(target, None)
        self.written.slots.pop(job.slot[1], None)
        found = self._copied(job, self._segments.down(job), self._give_way)
        if found is None:
            return JobEnd.CANCELLED
        pages, slot = found
        assert slot is not None
        self.written.pages.update(zip((page for _, page in job.pages), pages, strict=True))
        self.written.slots[job.slot[1]] = slot
        if self._journal is not None:
            with self._segment():
                self._journal.kept(job, self.written)
        return JobEnd.DONE

    def _load(self, job: CopyJob) -> JobEnd:
        # Read the digests now: the sources have no writer, and a load in progress keeps them.
        wanted = [self.written.pages.get(source) for source, _ in job.pages]
        slot = None if job.slot is None else self.written.slots.get(job.slot[0])
        found = self._copied(job, self._segments.up(job), lambda: None)
        if found is None:
            return JobEnd.CANCELLED
        return JobEnd.DONE if found == (wanted, slot) else _mismatched(job)

    def _copied(
        self, job: CopyJob, copy: RunningCopy, between: Notice
    ) -> tuple[list[int], int | None] | None:
        """Copy the job's bytes and return the digests of its pages and slot; None if the job was
        cancelled. between: called before each segment. After the return none of the job's bytes
        move."""
        try:
            more = True
            while more:
                between()
                if self._is_unwanted(job):
                    return None
                with self._segment():
                    more = copy.advance()
                if job.barrier is not None:
                    job.barrier.arrived(copy.layers)
            with self._segment():
                return copy.digests()
        finally:
            with self._segment():
                copy.settle()

    @contextmanager
    def _segment(self) -> Iterator[None]:
        self._segment_began = self._clock()
        try:
            yield
        finally:
            self._segment_began = None


def _mismatched(job: CopyJob) -> JobEnd:
    log.error(
        "what was loaded of %d pages and a state is not what was written: it is computed instead",
        len(job.pages),
    )
    return JobEnd.MISMATCH
