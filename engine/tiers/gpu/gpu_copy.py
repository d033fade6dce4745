"""`RunningCopy` between a GPU's arena and pinned host memory, either way.

Pieces follow each other on one stream, and the digest of each behind it on another.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import torch

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.layer_pieces import Moves, Piece, layer_pieces
from tasuki.pycache.arena import Arena

from .arena_sums import ArenaSums
from .batched_moves import RunMoves
from .streams import recorded, settle
from .word_digest import rows_of_piece

_PIECE_BYTES = 256 << 20
"""Of what goes by one call: of most jobs all that a layer has. The host's part of a call is taken
from who launches layers behind a load, and from steps beside a write."""
_UNDER_WAY = 256 << 20
"""Bytes that are under way at a time, with the call that passes them: so many milliseconds that the
link never waits for the host. With all of a load at once each launch of a layer behind it takes
longer, and what nobody wants ends late."""


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
        self._arena = arena
        self._ids = ids
        self._moved = moved
        self._lane = lane
        self._run_moves = run_moves
        self._calls = _calls(arena, job)
        self._next = next(self._calls, None)
        self._under_way: deque[tuple[torch.cuda.Event, _Call]] = deque()
        self._bytes = 0
        self.layers = 0

    @cached_property
    def _sums(self) -> ArenaSums:
        """Made behind the first call, on the stream of checks: a table of a long job takes the host
        a millisecond or two, in which the states move."""
        return ArenaSums(self._arena, *self._ids)

    def advance(self) -> bool:
        if self._next is not None and self._bytes < self._limit:
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

    @property
    def _limit(self) -> int:
        """The first call, the state's, goes alone: meanwhile who computes behind a load uploads
        what it computes on, which would land behind all that had been asked for."""
        return _UNDER_WAY if self.layers else 1

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
    """The job's pieces in their order, those of the slot together."""
    end = 0
    for _, some in groupby(layer_pieces(arena.layout, job, _PIECE_BYTES), _call_of):
        pieces = list(some)
        first, end = end, end + sum(map(rows_of_piece, pieces))
        moves = np.concatenate([piece.moves for piece in pieces], axis=1)
        length = sum(piece.length for piece in pieces)
        yield _Call(pieces[-1].layers, moves, (first, end), length)


def _call_of(piece: Piece) -> tuple[int, int] | None:
    return None if piece.region is None else (piece.region, piece.pages[0])
