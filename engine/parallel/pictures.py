"""Rows of pictures on several ranks: each rank has the whole tower, and pictures take turns.

Picture i is computed on rank i mod n, if that rank is free. Ranks compute in rounds, a block of
each picture at a time. Every rank takes part in a round, so none waits long for another. A
finished picture's rows go to all ranks once. The leader's store decides which rows stay, and the
others follow it by number. One picture is one call, so its rows have the same bits on any rank.

Thread rule: the thread of each rank's forwards, between two plans. Invariant: all ranks begin the
same exchanges in the same order. An error of a tower ends its picture, any other one the node.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from tasuki.engine.pictures.row_store import PictureName, PictureNumber, RowsGone
from tasuki.engine.pictures.rows import Underway
from tasuki.model.vision.grid import PictureGrid
from tasuki.model.vision.pixels import PicturePatches
from tasuki.model.vision.tower import VisionTower
from tasuki.utils.program import line_of

from . import messages as r
from .collectives import GlooCollectives
from .ranks import Ranks

log = logging.getLogger(__name__)

_REPORT_BYTES = 256
"""Bytes of a rank's report of a round: empty, or the reason of a failure."""

Done = TypeVar("Done")


class RowsFailed(Exception):
    """A rank's tower failed on a picture. Send the picture again."""


@dataclass
class _TowerOfRank:
    """The tower of this rank, and its picture. failure: empty, or the reason of its end."""

    tower: VisionTower
    exchange: GlooCollectives
    rank: int
    encode: Underway | None = None
    failure: str = ""

    def begin(self, patches: PicturePatches) -> None:
        self.failure = ""
        try:
            self.encode = self.tower.begin(patches)
        except Exception as error:
            self._failed(error)

    def round(self) -> list[str]:
        """Run a block of this rank's picture, if it has one. Return all ranks' failures, in rank
        order; empty for ranks without one."""
        if self.encode is not None:
            try:
                self.encode.run(1)
            except Exception as error:
                self._failed(error)
        report = self.failure.encode()[:_REPORT_BYTES].ljust(_REPORT_BYTES, b"\0")
        return [
            each.rstrip(b"\0").decode(errors="replace") for each in self.exchange.exchange(report)
        ]

    def share(self, rank: int, tokens: int) -> Tensor:
        """Return the rows [tokens, hidden] of the picture of `rank`. Failed rows are NaN."""
        weights = self.tower.weights
        shape = (tokens, self.tower.config.out_hidden)
        own = torch.full(shape, float("nan"), dtype=weights.dtype, device=weights.device)
        if rank == self.rank and self.encode is not None:
            try:
                own = self.encode.rows()
            except Exception:
                log.exception("a picture's rows failed on rank %d", rank)
        if rank == self.rank:
            self.encode = None
        return self.exchange.of_rank(own, rank)

    def drop(self) -> None:
        self.encode, self.failure = None, ""

    def _failed(self, error: Exception) -> None:
        log.error("a picture's encode failed on rank %d", self.rank, exc_info=error)
        self.encode, self.failure = None, line_of(error) or type(error).__name__


@dataclass
class _Placed:
    """A picture on a rank. done: blocks run. failure: empty, or the reason of its end."""

    rank: int
    tokens: int
    done: int = 0
    failure: str = ""


class SharedRows:
    """The towers of all ranks, for the leader. Implements Rows, and RowMirror for the other ranks'
    stores."""

    def __init__(self, tower: VisionTower, ranks: Ranks, exchange: GlooCollectives) -> None:
        """tower: this rank's. ranks: the others. exchange: between all."""
        self._ranks = ranks
        self._own = _TowerOfRank(tower, exchange, 0)
        self._depth = tower.config.depth
        self._placed: dict[PictureName, _Placed] = {}
        """At most one for each rank."""
        self._begun: PictureName | None = None
        self._turn = 0
        self.begun = [0] * len(ranks)
        """Pictures begun, by rank."""

    @property
    def ahead(self) -> int:
        return len(self._ranks) - 1

    def wanted(self, name: PictureName, patches: PicturePatches) -> None:
        if name not in self._placed and len(self._placed) < self.ahead + (self._begun is not None):
            self._place(name, patches)

    def begin(self, name: PictureName, patches: PicturePatches) -> Underway:
        if name not in self._placed:
            self._place(name, patches)
        self._begun = name
        return _Begun(self, self._placed[name], self._depth)

    def unwanted(self, name: PictureName) -> None:
        placed = self._placed.pop(name, None)
        if self._begun == name:
            self._begun = None
        if placed is not None and placed.rank:
            self._ranks.tell(placed.rank, r.ForgetPicture())
        elif placed is not None:
            self._own.drop()

    def round(self) -> None:
        """Run a block of each rank's picture."""
        self._ranks.post(r.RunBlocks())
        failures = self._together(self._own.round)
        for placed in self._placed.values():
            placed.done = min(self._depth, placed.done + 1)
            placed.failure = placed.failure or failures[placed.rank]

    def share(self, placed: _Placed) -> Tensor:
        """Return the rows of a finished picture, and give them to all ranks."""
        self._ranks.post(r.ShareRows(placed.rank, placed.tokens))
        rows = self._together(lambda: self._own.share(placed.rank, placed.tokens))
        self._placed = {name: each for name, each in self._placed.items() if each is not placed}
        self._begun = None
        return rows

    def stored(self, number: PictureNumber) -> None:
        self._ranks.post(r.KeepRows(number))

    def dropped(self, number: PictureNumber) -> None:
        self._ranks.post(r.DropRows(number))

    def _place(self, name: PictureName, patches: PicturePatches) -> None:
        """Give the picture to the next free rank in turn. REQUIRES: one is free."""
        taken = {placed.rank for placed in self._placed.values()}
        count = len(self._ranks)
        turns = ((self._turn + step) % count for step in range(count))
        rank = next(rank for rank in turns if rank not in taken)
        self._turn = rank + 1
        self.begun[rank] += 1
        grid = patches.grid
        self._placed[name] = _Placed(rank, grid.tokens)
        if rank == 0:
            self._own.begin(patches)
            return
        levels = patches.levels.contiguous()
        message = r.BeginPicture(
            *(grid.rows, grid.columns, grid.merge, levels.shape[1], levels.numpy().tobytes())
        )
        self._ranks.tell(rank, message)

    def _together(self, call: Callable[[], Done]) -> Done:
        """Call a function with an exchange. Its error ends the node: the ranks no longer agree."""
        try:
            return call()
        except Exception as error:
            self._ranks.blame(error)
            self._ranks.check()
            raise


class _Begun:
    """The picture begun, on any rank. Implements Underway."""

    def __init__(self, rows: SharedRows, placed: _Placed, depth: int) -> None:
        self._rows = rows
        self._placed = placed
        self._depth = depth

    @property
    def blocks_left(self) -> int:
        return self._depth - self._placed.done

    def run(self, blocks: int) -> None:
        for _ in range(min(blocks, self.blocks_left)):
            self._rows.round()
        if self._placed.failure:
            raise RowsFailed(self._placed.failure)

    def rows(self) -> Tensor:
        return self._rows.share(self._placed)


@dataclass
class FollowerRows:
    """A follower's tower and rows, as ordered by the leader. Implements FindRows. Thread rule: the
    thread of the plans."""

    tower: VisionTower
    exchange: GlooCollectives
    rank: int
    _own: _TowerOfRank = field(init=False)
    _last: Tensor | None = field(init=False, default=None)
    _rows: dict[int, Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._own = _TowerOfRank(self.tower, self.exchange, self.rank)

    def __len__(self) -> int:
        return len(self._rows)

    def handle(self, message: r.PictureMessage) -> None:
        match message:
            case r.BeginPicture():
                levels = torch.frombuffer(bytearray(message.levels), dtype=torch.uint8)
                grid = PictureGrid(message.rows, message.columns, message.merge)
                patches = PicturePatches(levels.view(-1, message.values), grid)
                self._own.begin(patches)
            case r.RunBlocks():
                self._own.round()
            case r.ShareRows(rank, tokens):
                self._last = self._own.share(rank, tokens)
            case r.KeepRows(number):
                assert self._last is not None, "rows are to be kept before any came"
                self._rows[number], self._last = self._last, None
            case r.DropRows(number):
                del self._rows[number]
            case r.ForgetPicture():
                self._own.drop()

    def rows(self, number: PictureNumber) -> Tensor:
        found = self._rows.get(number)
        if found is None:
            raise RowsGone(f"rows {number} of a picture are on no follower; restart the node")
        return found
