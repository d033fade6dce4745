"""How much processor time an event loop's single callbacks take."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass
class LoopWatch:
    """Of every callback of every loop while `watching`. longest: seconds, and what it was."""

    longest: tuple[float, str] = (0.0, "")
    callbacks: int = 0

    def forget(self) -> None:
        self.longest, self.callbacks = (0.0, ""), 0

    def ran(self, handle: asyncio.Handle, seconds: float) -> None:
        self.callbacks += 1
        if seconds > self.longest[0]:
            self.longest = (seconds, repr(handle)[:300])


@contextmanager
def watched_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopWatch]:
    """Counts this thread's processor time alone: others' load on the machine is not in it."""
    watch = LoopWatch()
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        try:
            run(handle)
        finally:
            watch.ran(handle, time.thread_time() - begun)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", timed)
        yield watch
