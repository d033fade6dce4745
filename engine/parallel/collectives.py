"""What ranks exchange inside a forward: one interface, whatever carries it. A rank that has all of
the model needs none (model/backends/reduce.py, one_rank)."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from tasuki.engine.runner.base import DeviceLost

Exchange = Callable[[bytes], list[bytes]]
"""Gives these bytes to all ranks, and returns all ranks', as many of each, in rank order."""


class RankSilent(DeviceLost):
    """Another rank did not come to a collective in time; restart the node."""


class Collectives(Protocol):
    """Of one rank. Every rank calls the same ones in the same order, on the thread of its forward,
    with tensors of one shape and dtype; each ends with the same bits on every rank. Raises what its
    carrier does where a rank is gone: then no forward of this node can succeed any more."""

    def sum(self, partial: Tensor) -> Tensor:
        """As Reduce: of all ranks' [T, width], added in rank order in float32 and rounded once."""

    def gather(self, partial: Tensor) -> Tensor:
        """As Gather: all ranks' [T, columns of one] side by side in rank order."""

    def of_leader(self, own: Tensor) -> Tensor:
        """Rank 0's."""

    @property
    def begun(self) -> int:
        """Exchanges so far that this rank came to, so that one that stands still in a forward is
        seen to; 0 where the carrier bounds each wait by itself. From any thread."""

    def check(self) -> None:
        """Once what was exchanged has been computed: raises RankSilent where a rank did not come,
        and the carrier did not raise before."""

    def abandon(self) -> None:
        """Have nothing wait for another rank any more, what is under way neither: one is lost. From
        any thread."""
