"""The place where rows of pictures are computed: the seam between the encoder and its towers.

Rows are a function of the picture alone, so the place changes no bit. Thread rule: the engine
loop's.
"""

from typing import Protocol

from torch import Tensor

from tasuki.model.vision.pixels import PicturePatches
from tasuki.model.vision.tower import VisionTower

from .row_store import PictureName


class Underway(Protocol):
    """One picture on its way through a tower."""

    @property
    def blocks_left(self) -> int: ...

    def run(self, blocks: int) -> None:
        """Run the picture through the next blocks, or the rest. Raises the tower's errors."""

    def rows(self) -> Tensor:
        """Return the picture's rows [tokens, hidden]. REQUIRES: all blocks have run."""


class Rows(Protocol):
    """Computes rows of pictures, on towers here or elsewhere. One picture is begun at a time."""

    @property
    def ahead(self) -> int:
        """Return the number of pictures computed beside the one begun."""

    def wanted(self, name: PictureName, patches: PicturePatches) -> None:
        """Compute a picture to be begun later, if a tower is free. Idempotent."""

    def begin(self, name: PictureName, patches: PicturePatches) -> Underway:
        """Begin a picture, or go on with one wanted before. Raises PictureError. REQUIRES: the one
        begun before has given its rows, or is unwanted."""

    def unwanted(self, name: PictureName) -> None:
        """Give up a picture; do nothing for others. Idempotent."""


class RowsHere:
    """One tower, here. Implements Rows."""

    ahead = 0

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower

    def wanted(self, name: PictureName, patches: PicturePatches) -> None:
        """Do nothing: the tower computes one picture at a time."""

    def begin(self, name: PictureName, patches: PicturePatches) -> Underway:
        return self._tower.begin(patches)

    def unwanted(self, name: PictureName) -> None:
        """Do nothing: the picture's Encode is all there is of it."""
