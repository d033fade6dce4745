"""What ranks of one host share with their leader: arena memory and agreed steps.

The leader's process owns the memory and is the only one that writes to peers. Thread rule: any
thread.
"""

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tasuki.transfer.ranks.region import RankRegion, RankSpans
from tasuki.transfer.windows.window import StepCounter

Report = Callable[[int, bool], None]
"""A rank's ticks so far, and whether a forward ended with the last."""


class ReportedSteps(StepCounter):
    """A rank's own counter, which says at each tick how far it is."""

    def __init__(self, report: Report) -> None:
        """report: called on the ticking thread."""
        super().__init__(report)


class AgreedSteps:
    """How far all ranks are: what none of them has still to write.

    A step counter is each rank's own; a sender waits for this one, which has a value once the
    slowest rank does. Thread rule: any thread, one lock.

    steps: of all ranks; ticked here alone.
    """

    def __init__(self, ranks: int) -> None:
        self.steps = StepCounter()
        self._lock = threading.Lock()
        self._values = [0] * ranks
        self._ends: deque[int] = deque()

    def report(self, rank: int, value: int, ended: bool) -> None:
        """As Report. What was reported is never more than is done."""
        with self._lock:
            self._values[rank] = max(self._values[rank], value)
            if ended and (not self._ends or self._ends[-1] < value):
                self._ends.append(value)
            least = min(self._values)
            while self.steps.value < least:
                self.steps.tick()
                self._end_if_over()
            self._end_if_over()

    def _end_if_over(self) -> None:
        while self._ends and self._ends[0] <= self.steps.value:
            self._ends.popleft()
            self.steps.end_forward()


_NAME = "arenas"


@dataclass(frozen=True)
class SharedArenas:
    """What the arenas of a node's ranks lie in, as its leader has it.

    So one process, the leader's, is who writes to peers and whom peers write to: its death is the
    end of all writes of this node. On a CPU that is one region of shared memory, of which each
    follower maps its own arena: who made it owns a mapping, and it ends with the last of them.

    agreed: how far all ranks are.
    """

    region: RankRegion
    spans: RankSpans
    agreed: AgreedSteps


@dataclass(frozen=True)
class HostArenas:
    """The leader's. memory: uint8 [spans.region_bytes]."""

    memory: torch.Tensor
    handle: int

    @staticmethod
    def create(folder: Path, spans: RankSpans) -> "HostArenas":
        """Zeros. folder: where followers find it until all have met. Raises OSError where there is
        no memory for it."""
        handle = os.memfd_create("tasuki-arenas")
        try:
            os.ftruncate(handle, spans.region_bytes)
            memory = _as_tensor(mmap.mmap(handle, spans.region_bytes))
            # The file has no name of its own; whoever of this user follows the link has it.
            (folder / _NAME).symlink_to(f"/proc/{os.getpid()}/fd/{handle}")
        except BaseException:
            os.close(handle)
            raise
        return HostArenas(memory, handle)

    def met(self) -> None:
        """Every follower has its arena: nobody else gets in. Once."""
        os.close(self.handle)


def open_arena(folder: Path, spans: RankSpans, rank: int) -> torch.Tensor:
    """A follower's own arena in the region: uint8 [spans.arena_bytes]. Raises OSError."""
    with (folder / _NAME).open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), spans.arena_bytes, offset=spans.base(rank))
    return _as_tensor(mapped)


def _as_tensor(mapped: mmap.mmap) -> torch.Tensor:
    """Keeps the mapping for as long as it is used."""
    return torch.frombuffer(mapped, dtype=torch.uint8)
