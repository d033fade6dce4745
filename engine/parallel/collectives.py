"""Exchange of tensors between ranks inside a forward: the interface, and gloo on loopback."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tasuki.engine.runner.base import DeviceLost

Exchange = Callable[[bytes], list[bytes]]
"""A function to send bytes to all ranks and return all ranks' bytes, in rank order. All are equally
long."""


class RankTimedOut(DeviceLost):
    """A rank did not reach a collective operation within its time limit. Restart the node."""


class Collectives(Protocol):
    """The exchanges of tensors between ranks inside a forward: one interface for any medium. A rank
    with all of the model needs none (model/forward.py, one_rank).

    Belongs to one rank. Every rank makes the same calls in the same order, on the thread of its
    forward. Tensors have one shape and dtype, and each result has the same bits on every rank.
    Raises the medium's error if a rank is gone. No forward of this node can succeed after it.
    """

    def sum(self, partial: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors [T, width], added in rank order in float32 and
        rounded once. Conforms to the model's Reduce."""

    def gather(self, partial: Tensor) -> Tensor:
        """Return all ranks' tensors [T, columns of one rank] side by side, in rank order. Conforms
        to the model's Gather."""

    def of_leader(self, own: Tensor) -> Tensor:
        """Return rank 0's tensor on every rank."""

    @property
    def begun(self) -> int:
        """Return the number of exchanges begun by this rank. It shows if a rank hangs in a forward.
        0 if the medium limits the time of each wait itself. Any thread."""

    def check(self) -> None:
        """Raise RankTimedOut if a rank missed an exchange without an error so far. Called after the
        exchanged data has been computed."""

    def abandon(self) -> None:
        """End all waits for other ranks, including waits in progress, because a rank is lost. Any
        thread."""


_LOOPBACK = "127.0.0.1"
_MEETING_SECONDS = 60.0
"""Seconds for all ranks to connect, after each has its weights."""


class GlooCollectives:
    """Collectives of ranks in several processes of one host, over gloo on loopback.

    Every sum gathers all partial sums and adds them here in rank order. So each rank has the same
    bits, independent of gloo's order. A sum of n ranks carries n times the bytes of a reduction.
    For the few ranks of a host without a GPU, this costs less than a message's time.

    Implements Collectives. timeout: longest seconds a collective waits for the slowest rank.
    """

    def __init__(self, meeting: Path, rank: int, ranks: int, timeout: float) -> None:
        """Connect, and return once all ranks are connected. meeting: path of a new file shared by
        the ranks, in a folder readable by this user only. Raises RuntimeError if a rank does not
        connect in time."""
        # Builds of torch without distributed have none, and one rank needs none.
        from torch._C._distributed_c10d import (
            AllgatherOptions,
            BroadcastOptions,
            FileStore,
            ProcessGroupGloo,
        )

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
        self._broadcast = BroadcastOptions()
        self._broadcast.timeout = timedelta(seconds=timeout)

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
        """Do nothing: each of gloo's collectives raises its own error."""

    def abandon(self) -> None:
        """Do nothing: a lost rank is killed, so its connections are closed and waits end."""

    def exchange(self, own: bytes) -> list[bytes]:
        """Return every rank's bytes, in rank order. REQUIRES: all are equally long."""
        mine = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        return [bytes(part.numpy()) for part in self._all(mine)]

    def of_rank(self, own: Tensor, rank: int) -> Tensor:
        """Return the tensor of `rank` on every rank. REQUIRES: all have one shape and dtype."""
        self.begun += 1
        found = own.cpu().contiguous()
        self._broadcast.rootRank = rank
        # Bytes, as in _all().
        parts = [found.view(-1).view(torch.uint8)]
        self._group.broadcast(parts, self._broadcast).wait()  # type: ignore[attr-defined]
        return found.to(own.device)

    def _all(self, mine: Tensor) -> list[Tensor]:
        """Return every rank's tensor, in rank order."""
        self.begun += 1
        mine = mine.contiguous()
        found = mine.new_empty((self._ranks, *mine.shape))
        # Exchange bytes, because gloo knows fewer dtypes than models have.
        into = [part.view(-1).view(torch.uint8) for part in found.unbind()]
        given = [mine.view(-1).view(torch.uint8)]
        self._group.allgather([into], given, self._options).wait()  # type: ignore[attr-defined]
        return [*found.unbind()]
