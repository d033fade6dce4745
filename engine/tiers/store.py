"""The common part of all stores below host memory: interface, rows, threads and bounds.

`within()` bounds a call in case it hangs. A store is paused after too many failures in a row.
"""

import hashlib
import json
import mmap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.arena import Arena
from tasuki.utils.signatures import Clock, Work
from tasuki.utils.system import name_this_thread

from .digests import page_bytes, slot_bytes

PREFIX = "tasuki-"
_DIGITS = 16


def contract_digest(contract: Mapping[str, str]) -> str:
    """Return the digest, hex. contract: settings to compare before kept bytes are used."""
    return hashlib.sha256(json.dumps(dict(contract), sort_keys=True).encode()).hexdigest()


def folder_of(digest: str) -> str:
    """Return the name of the folder of a contract. Nodes with equal names give bytes the same
    meaning."""
    return PREFIX + digest[:_DIGITS]


Found = TypeVar("Found")


def within(seconds: float, call: Work[Found], late: OSError) -> Found:
    """Run a call within a time limit, in case it hangs.

    Raises the call's error, or `late` if it has not ended in time. The hanging call then keeps its
    thread.
    """
    found: list[Found] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tasuki-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not found:
        raise late
    return found[0]


MOST_FAILURES = 3


class Patience:
    """A counter of a store's failures in a row. After too many the store is not used.

    Thread rule: any.
    """

    def __init__(self, seconds: float = float("inf"), clock: Clock = time.monotonic) -> None:
        """seconds: time until the store is tried again."""
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._since = 0.0

    @property
    def is_over(self) -> bool:
        with self._lock:
            if self._failures < MOST_FAILURES:
                return False
            return self._clock() < self._since + self._seconds

    def failed(self) -> bool:
        """Record a failure. Returns whether this one reached the limit."""
        with self._lock:
            self._failures += 1
            self._since = self._clock()
            return self._failures == MOST_FAILURES

    def worked(self) -> None:
        with self._lock:
            self._failures = 0


MakeContract = Callable[[], Mapping[str, str]]
"""Returns the settings to compare with another node's before its bytes are used. Computed once."""

Ends = SimpleQueue[BaseException | None]
"""The result of each call of one run()."""


class IoThreads:
    """Concurrent calls: a few threads, so a store has several reads or writes at a time.

    Thread rule of run(): any, several at a time. Invariant: all calls given to run() have ended
    when it returns, independent of other callers. If a call hangs, so does run(); its callers have
    their own time limit (CopyThread).

    The threads are daemons. They start with the first run() of several calls. A hanging call does
    not block the process's exit.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[tuple[Work[None], Ends] | None] = SimpleQueue()

    def run(self, calls: Sequence[Work[None]]) -> None:
        """Run the calls. Raises an error of one of them, once all have ended."""
        if len(calls) == 1:
            calls[0]()
            return
        self._start()
        ends: Ends = SimpleQueue()
        for call in calls:
            self._asked.put((call, ends))
        errors = [ends.get() for _ in calls]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """End the threads. Idempotent. REQUIRES: no call runs, except calls hanging for good."""
        for _ in self._threads:
            self._asked.put(None)
        self._threads.clear()

    def _start(self) -> None:
        with self._starting:
            while len(self._threads) < self._count:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _work(self) -> None:
        name_this_thread()
        while (asked := self._asked.get()) is not None:
            call, ends = asked
            try:
                call()
            except BaseException as error:
                ends.put(error)
            else:
                ends.put(None)


SECTOR = 4096
Row = NDArray[np.uint8]
"""[row bytes]: the content, then padding of any value."""
Rows = NDArray[np.uint8]
"""[rows, row bytes], each a Row."""


def row_bytes(size: int) -> int:
    """Return the bytes of a row for `size` bytes of content."""
    return -(-size // SECTOR) * SECTOR


class PassingRows:
    """A buffer for pages and slots on their way to a store and back: one row each.

    A row begins at a sector of memory and is a whole number of sectors long. Direct disk reads and
    writes need this.

    Grows to the largest request. Thread rule: one thread; each request overwrites the rows of the
    one before.
    """

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def rows(self, count: int, size: int) -> Rows:
        """Return `count` rows for `size` bytes each. Their content is undefined."""
        length = count * row_bytes(size)
        if len(self._memory) < length:
            # A map of its own begins at a sector.
            self._memory = np.frombuffer(mmap.mmap(-1, length), np.uint8)
        return self._memory[:length].reshape(count, row_bytes(size))


class TierSource(Protocol):
    """A readable store of pages and slots. Thread rule: any number of threads, for ids not being
    written. A call returns with all of its bytes read, or raises an OSError. The bytes are not
    trusted: the reader compares digests. A call has no time limit: its caller has one
    (CopyThread)."""

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        """Read each page into the first bytes of its row."""

    def get_slot(self, slot: int, row: Row) -> None: ...


class TierStore(TierSource, Protocol):
    """A tier below the arena as seen by copiers: pages and slots by the tree's ids.

    Host memory is only read (TierSource). A disk file and remote objects are written too.

    One thread writes.
    """

    def put_pages(self, pages: Sequence[int], rows: Rows) -> None:
        """Write each page from the first bytes of its row."""

    def put_slot(self, slot: int, row: Row) -> None: ...


class HostSource:
    """An arena in host memory as a source."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        size = self._arena.layout.page_bytes
        for page, row in zip(pages, rows, strict=True):
            blocks = page_bytes(self._arena, page)
            row[:size].reshape(blocks.shape)[:] = blocks

    def get_slot(self, slot: int, row: Row) -> None:
        row[: self._arena.layout.slot_bytes] = slot_bytes(self._arena, slot)
