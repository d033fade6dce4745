"""The common part of all stores below host memory: interface, rows, threads and bounds.

`within()` bounds a call that may hang. A store is not asked again after too many failures in a
row.
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
    """Hex. contract: what must be equal before bytes that were kept are used."""
    return hashlib.sha256(json.dumps(dict(contract), sort_keys=True).encode()).hexdigest()


def folder_of(digest: str) -> str:
    """The name of what nodes of one contract keep: equal where their bytes mean the same."""
    return PREFIX + digest[:_DIGITS]


Found = TypeVar("Found")


def within(seconds: float, call: Work[Found], late: OSError) -> Found:
    """A call that may hang, with a bound.

    Raises what the call raises, and `late` where it has not ended by then: then it hangs a thread
    of nobody.
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
    """How often a store may fail in a row before nobody asks it any more.

    Thread rule: any.
    """

    def __init__(self, seconds: float = float("inf"), clock: Clock = time.monotonic) -> None:
        """seconds: after which it is tried again."""
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
        """Whether it is over by this one."""
        with self._lock:
            self._failures += 1
            self._since = self._clock()
            return self._failures == MOST_FAILURES

    def worked(self) -> None:
        with self._lock:
            self._failures = 0


MakeContract = Callable[[], Mapping[str, str]]
"""Returns the settings that must equal another node's before its bytes are used. Computed once."""

Ends = SimpleQueue[BaseException | None]
"""How each call of one run() ended."""


class IoThreads:
    """Calls side by side: a few threads, so that a store has several reads or writes at a time.

    Thread rule of run(): any, several at a time. Invariant: what run() was given has ended when it
    returns, whoever else runs calls meanwhile. A call that hangs, hangs it: who waits for it has a
    bound (CopyThread).

    Daemons, from the first run() with several calls on: what hangs in one holds up no exit.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[tuple[Work[None], Ends] | None] = SimpleQueue()

    def run(self, calls: Sequence[Work[None]]) -> None:
        """Raises what one of them raised, once all have ended."""
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
        """Idempotent. REQUIRES: nothing runs, or it hangs for good."""
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
"""[row bytes]: what passes, then whatever."""
Rows = NDArray[np.uint8]
"""[rows, row bytes], each as a Row."""


def row_bytes(size: int) -> int:
    """Of a row for so many bytes."""
    return -(-size // SECTOR) * SECTOR


class PassingRows:
    """Memory that pages and slots pass through on their way to a store and back: a row each.

    A row begins at a sector of memory and is a whole number of them long, as direct reads and
    writes of a disk need it.

    Grows to the most that was asked for. Thread rule: one thread; what it gave out before is
    overwritten.
    """

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def rows(self, count: int, size: int) -> Rows:
        """For so many bytes each, with whatever was there."""
        length = count * row_bytes(size)
        if len(self._memory) < length:
            # A map of its own begins at a sector.
            self._memory = np.frombuffer(mmap.mmap(-1, length), np.uint8)
        return self._memory[:length].reshape(count, row_bytes(size))


class TierSource(Protocol):
    """Thread rule: as many threads as like, of ids that nobody writes. A call returns with all of
    its bytes there, or raises an OSError; what it brings is not believed: who reads compares
    digests. It takes as long as it takes: who waits for it has a bound (CopyThread)."""

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        """Into the first bytes of a row each."""

    def get_slot(self, slot: int, row: Row) -> None: ...


class TierStore(TierSource, Protocol):
    """What a tier below the arena is to who copies: pages and slots by the tree's ids.

    Host memory is one that is read from, a file on a disk and objects of a remote store are ones
    that are written too.

    One thread writes.
    """

    def put_pages(self, pages: Sequence[int], rows: Rows) -> None:
        """From the first bytes of a row each."""

    def put_slot(self, slot: int, row: Row) -> None: ...


class HostSource:
    """An arena in host memory."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def get_pages(self, pages: Sequence[int], rows: Rows) -> None:
        size = self._arena.layout.page_bytes
        for page, row in zip(pages, rows, strict=True):
            blocks = page_bytes(self._arena, page)
            row[:size].reshape(blocks.shape)[:] = blocks

    def get_slot(self, slot: int, row: Row) -> None:
        row[: self._arena.layout.slot_bytes] = slot_bytes(self._arena, slot)
