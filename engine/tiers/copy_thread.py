"""Copies between the arena and the memory below it, on a thread of its own.

Owns that thread and the digests of what it wrote. Knows ids; decides nothing. Thread rule: begin(),
cancel(), take_ended(), wait() and close() are the engine loop's; the pieces and digests are the
thread's.
Invariants:
1. A job that was begun ends once, however it went, and touches nothing from then on.
2. Loads go before writes: a write gives way between two pieces, and gives up where it is cancelled.
3. What a load brings is of use only where each page and the state have the digest that they were
   written with. A target that is being written has none until it is written whole.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterator

from tasuki.utils.os_threads import name_this_thread

from .copy_job import CopyJob, Direction, JobEnd
from .piece_copies import PieceCopies

log = logging.getLogger(__name__)

_PIECE_BYTES = 8 << 20
"""Of what is copied before anybody looks whether it is still wanted: a few milliseconds."""


class CopyThread:
    def __init__(self, pieces: PieceCopies, page_bytes: int) -> None:
        self._pieces = pieces
        self._pages_at_once = max(1, _PIECE_BYTES // page_bytes)
        self._page_digests: dict[int, int] = {}
        self._slot_digests: dict[int, int] = {}
        self._asked = threading.Condition()
        self._waiting: dict[Direction, deque[CopyJob]] = {each: deque() for each in Direction}
        self._cancelled: set[int] = set()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._ended: deque[tuple[int, JobEnd]] = deque()
        self._any_ended = threading.Event()

    def begin(self, job: CopyJob) -> None:
        """Once closed it is cancelled at once. REQUIRES: whatever was launched that writes its
        sources, or that reads its targets for an owner before, has ended."""
        with self._asked:
            if self._closing:
                self._ended.append((job.transfer, JobEnd.CANCELLED))
                return
            self._waiting[job.direction].append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tasuki-tiers", daemon=True)
                self._thread.start()
            self._asked.notify()

    def cancel(self, transfer: int) -> None:
        """It ends soon; it may have ended well before that is seen."""
        with self._asked:
            self._cancelled.add(transfer)

    def take_ended(self) -> list[tuple[int, JobEnd]]:
        """Since the last call."""
        self._any_ended.clear()
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        with self._asked:
            self._cancelled.difference_update(transfer for transfer, _ in found)
        return found

    def wait(self, seconds: float) -> None:
        """Until a job has ended that was not taken, at most so long."""
        self._any_ended.wait(seconds)

    def close(self, seconds: float) -> bool:
        """End what was begun, as cancelled, and the thread. False: it is stuck in a piece.
        Idempotent."""
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
        """None: the tier closes, and nothing waits."""
        with self._asked:
            while not any(self._waiting.values()):
                if self._closing:
                    return None
                self._asked.wait()
            return (self._waiting[Direction.UP] or self._waiting[Direction.DOWN]).popleft()

    def _end(self, job: CopyJob) -> None:
        copy = self._load if job.direction is Direction.UP else self._write
        try:
            end = copy(job)
        except Exception:
            log.exception("a copy %s tier 0 broke; it is of no use", job.direction.value)
            end = JobEnd.BROKEN
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
        for _, target in job.pages:
            self._page_digests.pop(target, None)
        self._slot_digests.pop(job.slot[1], None)
        for pairs in self._page_pieces(job):
            self._give_way()
            if self._is_unwanted(job):
                return JobEnd.CANCELLED
            digests = self._pieces.pages_down(pairs)
            self._page_digests.update(
                (target, digest) for (_, target), digest in zip(pairs, digests, strict=True)
            )
        self._give_way()
        if self._is_unwanted(job):
            return JobEnd.CANCELLED
        self._slot_digests[job.slot[1]] = self._pieces.slot_down(job.slot)
        return JobEnd.DONE

    def _load(self, job: CopyJob) -> JobEnd:
        for pairs in self._page_pieces(job):
            if self._is_unwanted(job):
                return JobEnd.CANCELLED
            wanted = [self._page_digests.get(source) for source, _ in pairs]
            if self._pieces.pages_up(pairs) != wanted:
                return _mismatched(job)
        if self._is_unwanted(job):
            return JobEnd.CANCELLED
        if self._pieces.slot_up(job.slot) != self._slot_digests.get(job.slot[0]):
            return _mismatched(job)
        return JobEnd.DONE

    def _page_pieces(self, job: CopyJob) -> Iterator[tuple[tuple[int, int], ...]]:
        for first in range(0, len(job.pages), self._pages_at_once):
            yield job.pages[first : first + self._pages_at_once]


def _mismatched(job: CopyJob) -> JobEnd:
    log.error(
        "what was loaded of %d pages and a state is not what was written: it is computed instead",
        len(job.pages),
    )
    return JobEnd.MISMATCH
