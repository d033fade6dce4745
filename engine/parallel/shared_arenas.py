"""Memory and steps shared by the ranks of one host: arenas, and a step counter for all ranks."""

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.ranks.region import RankRegion, RankSpans

Report = Callable[[int, bool], None]
"""A function called with a rank's step counter value, and True if a forward ended with this value.
The thread incrementing the counter calls it."""


class AgreedSteps:
    """The progress of all ranks together: every rank has done all work before it.

    Each rank has its own step counter. A sender waits for this shared one. It reaches a value once
    the slowest rank does. Thread rule: any thread, one lock.

    steps: the shared counter; incremented only here.
    """

    def __init__(self, ranks: int) -> None:
        self.steps = StepCounter()
        self._lock = threading.Lock()
        self._values = [0] * ranks
        self._ends: deque[int] = deque()

    def report(self, rank: int, value: int, ended: bool) -> None:
        """Record a rank's step counter value. Reported values never exceed completed work. ended:
        True if a forward ended with this value."""
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
    """The memory of all arenas of a node, as mapped by its leader.

    Only the leader's process writes to other nodes, and they write only to it. So its death ends
    all writes of this node. On a CPU the memory is one shared region, and each follower maps its
    own arena. The region's maker owns a mapping, and the region ends with the last one.

    region: the memory. spans: its division into arenas. agreed: the progress of all ranks together.
    """

    region: RankRegion
    spans: RankSpans
    agreed: AgreedSteps


@dataclass(frozen=True)
class HostArenas:
    """The leader's mapping of all ranks' arenas in host memory. memory: uint8 [spans.region_bytes].
    handle: the region's file descriptor."""

    memory: torch.Tensor
    handle: int

    @staticmethod
    def create(folder: Path, spans: RankSpans) -> "HostArenas":
        """Make the shared memory region, filled with zeros. folder: place of a link for followers
        to find it until all are connected. Raises OSError if there is not enough memory."""
        handle = os.memfd_create("tasuki-arenas")
        try:
            os.ftruncate(handle, spans.region_bytes)
            memory = _as_tensor(mmap.mmap(handle, spans.region_bytes))
            # The file has no name of its own. Any process of this user can open it through the
            # link.
            (folder / _NAME).symlink_to(f"/proc/{os.getpid()}/fd/{handle}")
        except BaseException:
            os.close(handle)
            raise
        return HostArenas(memory, handle)

    def met(self) -> None:
        """Close the region to further processes. Called once, after every follower has mapped its
        arena."""
        os.close(self.handle)


def open_arena(folder: Path, spans: RankSpans, rank: int) -> torch.Tensor:
    """Map a follower's arena in the shared region: uint8 [spans.arena_bytes]. Raises OSError."""
    with (folder / _NAME).open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), spans.arena_bytes, offset=spans.base(rank))
    return _as_tensor(mapped)


def _as_tensor(mapped: mmap.mmap) -> torch.Tensor:
    """Return a tensor over the mapped memory; it keeps the mapping alive."""
    return torch.frombuffer(mapped, dtype=torch.uint8)
