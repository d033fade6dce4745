"""Threads shared fairly by callers. Each caller has a line (a queue of pieces of work). The line
with the fewest running pieces is next.

Owns the threads and the lines. Thread rule: any thread may submit; work must be safe on any thread.
Invariants: at most `of_a_line` pieces of one line run. The last free thread begins no second piece
of a line, so another line finds a thread. Pieces begin in their line's order, and never after their
future was cancelled. At the capacity, a new piece replaces the last piece of the longest line.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tasuki.utils.signatures import Result, Work

from .system import name_this_thread

Piece = Future[Any]


class LinesFull(Exception):
    """The capacity for waiting and running work is used up, and no caller's queue is longer than
    the submitting caller's own."""


class FairThreads:
    def __init__(
        self,
        threads: int,
        of_a_line: int,
        name: str,
        most: int | None = None,
        refusal: Callable[[], Exception] = LinesFull,
    ) -> None:
        """Set up the threads. threads: number of threads; they start with the first work and have
        the name `name`. of_a_line: largest number of running pieces of one line. most: largest
        number of waiting and running pieces of work; None: no bound. refusal: makes the error of
        work beyond `most`."""
        self._threads, self._of_a_line, self._most = threads, of_a_line, most
        self._refusal = refusal
        self._executor = ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=name_this_thread
        )
        self._lock = threading.Lock()
        self._lines: dict[str, dict[Piece, Work[Any]]] = {}
        """Waiting pieces of work by line (a caller's queue); no line is empty. The line served
        longest ago is first."""
        self._running: Counter[str] = Counter()
        """Number of running pieces of work by line (a caller's queue). No number is 0."""
        self._active = 0

    def submit(self, line: str, work: Work[Result]) -> "Future[Result]":
        """Add a piece of work to a line (a caller's queue), and return the future of its result.
        Raises the refusal if all room is taken. A piece removed in favour of another line raises it
        in its future."""
        piece: Future[Result] = Future()
        with self._lock:
            displaced = self._make_room(line)
            self._lines.setdefault(line, {})[piece] = work
            starts = self._active < self._threads
            self._active += starts
        if displaced is not None:
            displaced.set_exception(self._refusal())
        piece.add_done_callback(lambda done: self._leave(line, done))
        if starts:
            self._executor.submit(self._work_off)
        return piece

    def _make_room(self, line: str) -> Piece | None:
        """If the capacity is used up, remove and return a piece of the longest line; else return
        None. Raises the refusal. REQUIRES: the caller holds the lock."""
        held = Counter({name: len(pieces) for name, pieces in self._lines.items()}) + self._running
        if self._most is None or held.total() < self._most:
            return None
        longest = max(self._lines, key=lambda name: held[name], default=line)
        if held[longest] <= held[line] + 1:
            raise self._refusal()
        displaced = next(reversed(self._lines[longest]))
        # A future just being cancelled has made space already.
        self._drop(longest, displaced)
        return displaced if displaced.set_running_or_notify_cancel() else None

    def _work_off(self) -> None:
        line: str | None = None
        while True:
            with self._lock:
                if line is not None:
                    self._running -= Counter([line])
                taken = self._next()
                if taken is None:
                    self._active -= 1
                    return
                line, piece, work = taken
                self._running[line] += 1
            _run(piece, work)
            del taken, piece, work

    def _next(self) -> tuple[str, Piece, Work[Any]] | None:
        """Remove the next piece of work from its line, and return the line's name, the piece's
        future and its work. Return None if no piece may start. REQUIRES: the caller holds the
        lock."""
        free = [line for line in self._lines if self._running[line] < self._of_a_line]
        if not free:
            return None
        line = min(free, key=lambda line: self._running[line])
        if self._running[line] and self._running.total() >= self._threads - 1:
            return None
        pieces = self._lines.pop(line)
        piece = next(iter(pieces))
        work = pieces.pop(piece)
        if pieces:
            self._lines[line] = pieces
        return line, piece, work

    def _leave(self, line: str, piece: Piece) -> None:
        with self._lock:
            self._drop(line, piece)

    def _drop(self, line: str, piece: Piece) -> None:
        pieces = self._lines.get(line, {})
        pieces.pop(piece, None)
        if not pieces:
            self._lines.pop(line, None)


def _run(piece: Piece, work: Work[Any]) -> None:
    if not piece.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        piece.set_exception(error)
        # Its traceback has this frame. A cycle would keep what was worked on.
        del piece, work
    else:
        piece.set_result(result)
