"""The common part of all stores below host memory: their interface, buffer rows, threads, and
limits on failures."""

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
    """Return the hexadecimal SHA-256 of a contract: settings to compare before kept bytes of
    another run are used."""
    return hashlib.sha256(json.dumps(dict(contract), sort_keys=True).encode()).hexdigest()


def folder_of(digest: str) -> str:
    """Return the folder's name for data of one contract. digest: the contract's digest. Nodes with
    equal names give bytes the same meaning."""
    return PREFIX + digest[:_DIGITS]


Found = TypeVar("Found")


def within(seconds: float, call: Work[Found], late: OSError) -> Found:
    """Run `call` with a time limit, in case it hangs. Return its result.

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
    """A counter of a store's failures in a row. After MOST_FAILURES the store is not used for a
    while.

    Thread rule: any thread.
    """

    def __init__(self, seconds: float = float("inf"), clock: Clock = time.monotonic) -> None:
        """seconds: time after the last failure until the store is tried again."""
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
        """Record a failure. Return True if this one reached the limit."""
        with self._lock:
            self._failures += 1
            self._since = self._clock()
            return self._failures == MOST_FAILURES

    def worked(self) -> None:
        with self._lock:
            self._failures = 0


MakeContract = Callable[[], Mapping[str, str]]
"""A function to return the settings compared before another run's bytes are used. Computed once."""

Ends = SimpleQueue[BaseException | None]
"""Queue for the results of one run(): an exception for each failed call, None for others."""


class IoThreads:
    """A few threads for concurrent calls, so a store has several reads or writes in flight.

    Thread rule of run(): any thread, several at a time. Invariant: all calls given to run() have
    ended when it returns, independent of other callers. If a call hangs, so does run(); its callers
    have their own time limit (CopyThread).

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
        """Run the calls concurrently and wait for all of them. Then raise one of their errors, if
        any. A single call runs on the calling thread."""
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
"""One page or slot in a buffer, uint8 [row bytes]: the content, then padding of any value up to a
multiple of SECTOR."""
Rows = NDArray[np.uint8]
"""Several pages or slots in a buffer, uint8 [rows, row bytes], each a Row."""


def row_bytes(size: int) -> int:
    """Return the bytes of a buffer row for `size` bytes of content: `size` rounded up to SECTOR."""
    return -(-size // SECTOR) * SECTOR


class PassingRows:
    """A buffer for pages and slots on their way to a store and back: one row each.

    A row begins at a multiple of SECTOR in memory and is a whole number of sectors long. Direct
    disk reads and writes need this. The buffer grows to the largest request. Thread rule: one
    thread; each request overwrites the rows of the previous one.
    """

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def rows(self, count: int, size: int) -> Rows:
        """Return `count` rows of the buffer for `size` bytes each. Their content is undefined; the
        next call reuses the rows."""
        length = count * row_bytes(size)
        if len(self._memory) < length:
            # A map of its own begins at a sector.
            self._memory = np.frombuffer(mmap.mmap(-1, length), np.uint8)
        return self._memory[:length].reshape(count, row_bytes(size))


class TierSource(Protocol):
    """A readable store of pages and slots. Thread rule: any number of threads, for ids not being
    written. A call returns with all of its bytes read, or raises an OSError. The reader compares
    digests, because a read may return wrong bytes. A call has no time limit: its caller has one
    (CopyThread)."""

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        """Read each page into the first bytes of its buffer row."""

    def get_slot(self, slot: int, row: Row) -> None: ...


class TierStore(TierSource, Protocol):
    """A writable store of pages and slots below the arena, by their ids in the prefix tree.

    Implemented by a disk file and by remote objects. Host memory is a TierSource only. One thread
    writes.
    """

    def put_pages(self, pages: Sequence[int], rows: Rows) -> None:
        """Write each page from the first bytes of its buffer row."""

    def put_slot(self, slot: int, row: Row) -> None: ...


class HostSource:
    """The host tier as a TierSource: pages and slots are read from its arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        size = self._arena.layout.page_bytes
        for page, row in zip(pages, rows, strict=True):
            blocks = page_bytes(self._arena, page)
            row[:size].reshape(blocks.shape)[:] = blocks

    def get_slot(self, slot: int, row: Row) -> None:
        row[: self._arena.layout.slot_bytes] = slot_bytes(self._arena, slot)
