"""`PieceCopies` of pinned host memory below a GPU's arena.

Thread rule: one thread; a load may go on while a write is under way.
Invariants:
1. A digest is of the bytes that the arena has, taken by the GPU: of what was copied down, and of
   what came up. So what went wrong on the way down, rotted in host memory or went wrong on the way
   up is found, and the host reads none of it. Pages that a write reads nobody changes, or the write
   is of no use: its digests may be taken before or behind the copies.
2. A layer has landed once its digests are taken too: who computes behind a load may write the page
   and the slot that it goes on in.
3. Whatever was begun has ended, or StillMoving was raised, when settle() returns.
"""

from dataclasses import dataclass

import torch

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.pycache.arena import Arena

from .batched_moves import batched_moves
from .gpu_copy import GpuCopy, Lane
from .streams import FIRST, LAST, stream_of
from .word_digest import add_rows, rows_of_state


@dataclass(frozen=True)
class _Ways:
    down: Lane
    up: Lane


class GpuCopies:
    def __init__(self, arena: Arena, below: Arena) -> None:
        """REQUIRES: all of below's memory is pinned, slab by slab at least."""
        self._arena = arena
        self._below = below
        self._device = arena.bytes.device
        # Steps go before digests: what is computed behind a load waits for its copies mostly.
        self._ways = _Ways(self._lane(LAST), self._lane(FIRST))
        self._run_moves = batched_moves()
        self._warm_up()

    def _lane(self, priority: int) -> Lane:
        """priority: of copies."""
        return Lane(stream_of(self._device, priority), stream_of(self._device, LAST))

    def _warm_up(self) -> None:
        """Nobody waits for a compiler while a prompt is loaded."""
        checks = self._ways.down.checks
        with torch.cuda.stream(checks):
            rows = torch.from_numpy(rows_of_state(self._arena.layout, 0, 0, 8, 0))
            sums = torch.zeros(1, 2, dtype=torch.int64, device=self._device)
            add_rows(self._arena.bytes.view(torch.int64), rows.to(self._device), sums)
        checks.synchronize()

    def down(self, job: CopyJob) -> GpuCopy:
        """Its copies rank below whatever else runs."""
        # The current device belongs to a thread.
        torch.cuda.set_device(self._device)
        ids = [page for page, _ in job.pages], None if job.slot is None else job.slot[0]
        moved = self._arena.bytes, self._below.bytes
        return GpuCopy(self._arena, ids, moved, job, self._ways.down, self._run_moves)

    def up(self, job: CopyJob) -> GpuCopy:
        torch.cuda.set_device(self._device)
        ids = [page for _, page in job.pages], None if job.slot is None else job.slot[1]
        moved = self._below.bytes, self._arena.bytes
        return GpuCopy(self._arena, ids, moved, job, self._ways.up, self._run_moves)
