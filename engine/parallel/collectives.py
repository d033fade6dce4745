"""Exchange between ranks inside a forward: the interface, and gloo on loopback.

Thread rule: the thread of each rank's forward. Every rank makes the same calls in the same order,
and ends with the same bits.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tasuki.engine.runner.base import DeviceLost

Exchange = Callable[[bytes], list[bytes]]
"""Gives these bytes to all ranks, and returns all ranks', as many of each, in rank order."""


class RankSilent(DeviceLost):
    """Another rank did not come to a collective in time; restart the node."""


class Collectives(Protocol):
    """What ranks exchange inside a forward: one interface, whatever carries it. A rank that has all
    of the model needs none (model/forward.py, one_rank).

    Of one rank. Every rank calls the same ones in the same order, on the thread of its forward,
    with tensors of one shape and dtype; each ends with the same bits on every rank. Raises what its
    carrier does where a rank is gone: then no forward of this node can succeed any more.
    """

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


_LOOPBACK = "127.0.0.1"
_MEETING_SECONDS = 60.0
"""For all ranks to connect, once each has its weights."""


class GlooCollectives:
    """Collectives of ranks that are processes of one host, over gloo on loopback.

    Every sum is a gathering of all partial sums, added up here in rank order: so each rank has the
    same bits, whatever gloo does in which order. It carries n times the bytes of a reduction, which
    for the few ranks of a host without a GPU is less than the time that a message takes.

    As Collectives. timeout: seconds that a collective waits for the slowest rank.
    """

    def __init__(self, meeting: Path, rank: int, ranks: int, timeout: float) -> None:
        """Returns once all are connected. meeting: a file that the ranks share, in a folder that
        nobody else may read; to be used once. Raises RuntimeError where a rank does not come."""
        # Builds of torch without distributed have none, and one rank needs none.
        from torch._C._distributed_c10d import AllgatherOptions, FileStore, ProcessGroupGloo

        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = timedelta(seconds=_MEETING_SECONDS)
        options._threads = 1
        store = FileStore(str(meeting), ranks)
        self._group = ProcessGroupGloo(store, rank, ranks, options)
        self._ranks = ranks
        self.begun = 0
        self._options = AllgatherOptions()
        self._options.timeout = timedelta(seconds=timeout)

    def sum(self, partial: Tensor) -> Tensor:
        parts = self._all(partial)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part.float()
        return total.to(partial.dtype)

    def gather(self, partial: Tensor) -> Tensor:
        return torch.cat(self._all(partial), dim=-1)

    def of_leader(self, own: Tensor) -> Tensor:
        return self._all(own)[0]

    def check(self) -> None:
        """Whoever calls a collective has its error."""

    def abandon(self) -> None:
        """A rank that is lost has been killed, and its connections with it."""

    def exchange(self, own: bytes) -> list[bytes]:
        """Every rank's, in rank order. REQUIRES: all are as long."""
        mine = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        return [bytes(part.numpy()) for part in self._all(mine)]

    def _all(self, mine: Tensor) -> list[Tensor]:
        """Every rank's, in rank order."""
        self.begun += 1
        mine = mine.contiguous()
        found = mine.new_empty((self._ranks, *mine.shape))
        # As bytes: gloo knows fewer dtypes than models have.
        into = [part.view(-1).view(torch.uint8) for part in found.unbind()]
        given = [mine.view(-1).view(torch.uint8)]
        self._group.allgather([into], given, self._options).wait()  # type: ignore[attr-defined]
        return [*found.unbind()]
