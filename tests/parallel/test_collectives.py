"""Exchange of ranks over gloo: sums in rank order, the same bits on all."""

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tasuki.engine.parallel.collectives import GlooCollectives
from tests.harness.fork_server import forked_peer
from tests.harness.waiting import HANG_SECONDS

RANKS = 3


def given(rank: int, dtype: torch.dtype) -> Tensor:
    """Return numbers of so unequal sizes that a sum depends on its order."""
    generator = torch.Generator().manual_seed(rank)
    spread = torch.randn(5, 33, generator=generator) * 10 ** torch.randn(5, 33, generator=generator)
    return spread.to(dtype)


def exchange(connection: Connection, meeting: Path, rank: int) -> None:
    torch.set_num_threads(1)
    ranks = GlooCollectives(meeting, rank, RANKS, HANG_SECONDS)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        mine = given(rank, dtype)
        # Also a tensor that is not contiguous.
        found += [ranks.sum(mine), ranks.gather(mine), ranks.sum(mine.t()).t()]
        assert torch.equal(mine, given(rank, dtype))
    connection.send([tensor.float().numpy() for tensor in found])
    connection.recv()


def test_sums_are_in_rank_order_and_the_same_bits_on_every_rank(tmp_path: Path) -> None:
    peers = [forked_peer(exchange, tmp_path / "meeting", rank) for rank in range(RANKS)]
    told = []
    for _, connection in peers:
        assert connection.poll(HANG_SECONDS)
        told.append([torch.from_numpy(array) for array in connection.recv()])
    for process, connection in peers:
        connection.send(None)
        process.join(HANG_SECONDS)
    for place, dtype in ((0, torch.float32), (3, torch.bfloat16)):
        parts = [given(rank, dtype).float() for rank in range(RANKS)]
        total = ((parts[0] + parts[1]) + parts[2]).to(dtype).float()
        if dtype is torch.float32:
            assert not torch.equal(total, parts[0] + (parts[1] + parts[2]))
        for rank in told:
            assert torch.equal(rank[place], total) and torch.equal(rank[place + 2], total)
            assert torch.equal(rank[place + 1], torch.cat(parts, dim=-1))


def half(connection: Connection, meeting: Path) -> None:
    torch.set_num_threads(1)
    _met = GlooCollectives(meeting, 1, 2, HANG_SECONDS)
    # Until the other one has met it too: its connection is closed with it.
    connection.recv()


def test_a_rank_that_is_gone_is_an_error_and_no_wait(tmp_path: Path) -> None:
    process, connection = forked_peer(half, tmp_path / "meeting")
    ranks = GlooCollectives(tmp_path / "meeting", 0, 2, 10 * HANG_SECONDS)
    connection.send("met")
    process.join(HANG_SECONDS)
    with pytest.raises(RuntimeError):
        ranks.sum(torch.ones(3, 3))
