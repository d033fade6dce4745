"""`RunningCopy` between a GPU's arena and pinned host memory, either way.

Pieces follow each other on one stream, and the digest of each behind it on another.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.layer_pieces import Moves, layer_pieces
from tasuki.pycache.arena import Arena

from .arena_sums import ArenaSums
from .batched_moves import RunMoves
from .streams import recorded, settle
from .word_digest import rows_of_piece

_PIECE_BYTES = 32 << 20
_LEAST_BYTES = 16 << 20
"""Of what goes by one call: the states of layers are a few megabytes each, which take the link less
time than the host takes for a call."""
_UNDER_WAY = 128 << 20
"""Bytes that are under way at a time: two or three milliseconds, so that the link never waits for
the host, and what nobody wants ends soon."""


@dataclass(frozen=True)
class Lane:
    """Streams of copies and of digests, of one way."""

    copies: torch.cuda.Stream
    checks: torch.cuda.Stream


@dataclass(frozen=True)
class _Call:
    """layers: of which all has been moved behind it. rows: of the job's table, (first, end)."""

    layers: int
    moves: Moves
    rows: tuple[int, int]
    length: int


class GpuCopy:
    def __init__(
        self,
        arena: Arena,
        ids: tuple[list[int], int | None],
        moved: tuple[torch.Tensor, torch.Tensor],
        job: CopyJob,
        lane: Lane,
        run_moves: RunMoves,
    ) -> None:
        """ids: of the arena's pages and of its slot. moved: bytes, from and to."""
        self._moved = moved
        self._lane = lane
        self._run_moves = run_moves
        self._calls = _calls(arena, job)
        self._next = next(self._calls, None)
        self._under_way: deque[tuple[torch.cuda.Event, _Call]] = deque()
        self._bytes = 0
        self.layers = 0
        with torch.cuda.stream(lane.checks):
            self._sums = ArenaSums(arena, *ids)

    def advance(self) -> bool:
        if self._next is not None and self._bytes < _UNDER_WAY:
            self._begin(self._next)
            self._next = next(self._calls, None)
            return True
        if not self._under_way:
            return False
        event, call = self._under_way.popleft()
        event.synchronize()
        self._bytes -= call.length
        self.layers = call.layers
        return True

    def _begin(self, call: _Call) -> None:
        lane = self._lane
        with torch.cuda.stream(lane.copies):
            self._run_moves(*self._moved, call.moves)
            copied = recorded()
        with torch.cuda.stream(lane.checks):
            lane.checks.wait_event(copied)
            self._sums.add(*call.rows)
            self._under_way.append((recorded(), call))
        self._bytes += call.length

    def digests(self) -> tuple[list[int], int | None]:
        with torch.cuda.stream(self._lane.checks):
            return self._sums.digests()

    def settle(self) -> None:
        settle(self._lane.copies)
        settle(self._lane.checks)


def _calls(arena: Arena, job: CopyJob) -> Iterator[_Call]:
    """The job's pieces in their order, small ones together."""
    layout = arena.layout
    moves: list[Moves] = []
    first = end = length = 0
    layers = 0
    for piece in layer_pieces(layout, job, _PIECE_BYTES):
        moves.append(piece.moves)
        length += piece.length
        end += rows_of_piece(piece)
        layers = piece.layers
        if length >= _LEAST_BYTES:
            yield _Call(layers, np.concatenate(moves, axis=1), (first, end), length)
            moves, first, length = [], end, 0
    if moves:
        yield _Call(layers, np.concatenate(moves, axis=1), (first, end), length)
