"""What the arenas of a node's ranks lie in, as its leader has it.

So one process, the leader's, is who writes to peers and whom peers write to: its death is the end
of all writes of this node. On a CPU that is one region of shared memory, of which each follower
maps its own arena: who made it owns a mapping, and it ends with the last of them.
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from tasuki.transfer.ranks.region import RankRegion
from tasuki.transfer.ranks.spans import RankSpans

from .agreed_steps import AgreedSteps

_NAME = "arenas"


@dataclass(frozen=True)
class SharedArenas:
    """agreed: how far all ranks are."""

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
