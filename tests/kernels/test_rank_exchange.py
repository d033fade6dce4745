"""The exchange of several ranks' kernels, with one rank's mailboxes filled or read by the others.
Cases: sums in rank order, parts side by side, and a wait that ends."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tasuki.engine.parallel.collectives import RankTimedOut
from tasuki.engine.parallel.peer_collectives import (
    CHUNK_BYTES,
    FLAGS_BYTES,
    HALVES,
    LOOK_SPINS,
    PLACES,
    Mailboxes,
    PeerCollectives,
    data_offset,
    mailbox_bytes,
)
from tests.harness.covering import every_value

RANKS = 3
RANK = 1
POISON = 0x5A


def part_of(rank: int, call: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return numbers of so unequal sizes that a sum depends on its order."""
    generator = torch.Generator().manual_seed(100 * call + rank)
    spread = torch.randn(shape, generator=generator) * 10 ** torch.randn(shape, generator=generator)
    return spread.to(dtype)


@dataclass
class Boxes:
    """All ranks' mailboxes, in one process."""

    memory: Tensor
    mailboxes: Mailboxes

    @staticmethod
    def empty(device: torch.device) -> "Boxes":
        memory = torch.full((RANKS, mailbox_bytes(RANKS)), POISON, dtype=torch.uint8, device=device)
        memory[:, : data_offset(RANKS)] = 0
        addresses = [memory[rank].data_ptr() for rank in range(RANKS)]
        words = torch.zeros(2, dtype=torch.int32, pin_memory=device.type == "cuda")
        return Boxes(
            memory,
            Mailboxes(
                RANK,
                torch.tensor(addresses, dtype=torch.int64, device=device),
                torch.zeros(PLACES + 1, dtype=torch.int32, device=device),
                words,
            ),
        )

    def flags(self, rank: int) -> Tensor:
        """Return [writer, place] int32, in the mailbox of `rank`."""
        flat = self.memory[rank, : RANKS * PLACES * FLAGS_BYTES].view(torch.int32)
        return flat.view(RANKS, PLACES)

    def chunks(self, rank: int) -> Tensor:
        """Return [half, writer, place, bytes], in the mailbox of `rank`."""
        flat = self.memory[rank, data_offset(RANKS) :]
        return flat.view(HALVES, RANKS, PLACES, CHUNK_BYTES)

    def arrive(self, writer: int, round: int, part: Tensor, place: int = 0) -> None:
        """Store a part as the kernel of `writer` does for this rank. part: at most PLACES
        chunks."""
        data = part.reshape(-1).view(torch.uint8)
        for number, chunk in enumerate(data.split(CHUNK_BYTES), place):
            self.chunks(RANK)[round % HALVES, writer, number, : len(chunk)] = chunk.to(
                self.memory.device
            )
            self.flags(RANK)[writer, number] = round


SHAPES = [(1, 64), (3, 33), (5, 4096), (1, 1)]


@every_value(
    shape={str(shape): shape for shape in SHAPES},
    dtype={"fp32": torch.float32, "fp16": torch.float16},
)
def test_sums_and_gathers(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    boxes = Boxes.empty(device)
    ranks = PeerCollectives(boxes.mailboxes, timeout=1)
    for call in range(1, 5):
        parts = [part_of(rank, call, shape, dtype) for rank in range(RANKS)]
        for writer in (0, 2):
            boxes.arrive(writer, call, parts[writer])
        own = parts[RANK].to(device)
        if call % 2:
            found = ranks.sum(own.clone())
            expected = (parts[0].float() + parts[1].float()) + parts[2].float()
            expected = expected.to(dtype)
        else:
            found, expected = ranks.gather(own), torch.cat(parts, dim=-1)
        assert torch.equal(found.cpu(), expected)
        ranks.check()
        for peer in (0, 2):
            given = boxes.chunks(peer)[call % HALVES, RANK].reshape(-1)[: own.nbytes]
            assert torch.equal(given.cpu(), parts[RANK].reshape(-1).view(torch.uint8))
            used = -(-own.nbytes // CHUNK_BYTES)
            flags = boxes.flags(peer)[RANK].cpu()
            assert (flags[:used] == call).all() and not flags[used:].any()
    assert not boxes.flags(RANK)[RANK].any(), "it waits for itself"


def test_what_the_leader_drew(device: torch.device) -> None:
    """They are numbers of 32 bits and need not be valid floats."""
    boxes = Boxes.empty(device)
    ranks = PeerCollectives(boxes.mailboxes, timeout=1)
    numbers = torch.randint(-(1 << 31), 1 << 31, (RANKS, 3, 8), dtype=torch.int64).int()
    for writer in (0, 2):
        boxes.arrive(writer, 1, numbers[writer].view(1, -1))
    assert torch.equal(ranks.of_leader(numbers[RANK].to(device)).cpu(), numbers[0])
    ranks.check()


def test_rank_order_matters_to_these_parts() -> None:
    parts = [part_of(rank, 1, (5, 4096), torch.float32) for rank in range(RANKS)]
    assert not torch.equal((parts[0] + parts[1]) + parts[2], (parts[2] + parts[1]) + parts[0])


def test_programs_of_few_and_of_many_keep_their_own_rounds(device: torch.device) -> None:
    """A launch of one program leaves the second one's round unchanged."""
    boxes = Boxes.empty(device)
    ranks = PeerCollectives(boxes.mailboxes, timeout=1)
    half = CHUNK_BYTES // 4
    rounds = [0, 0]
    for call, chunks in enumerate((1, 2, 1, 1, 2)):
        parts = [part_of(rank, call, (chunks, half), torch.float32) for rank in range(RANKS)]
        for place in range(chunks):
            rounds[place] += 1
            for writer in (0, 2):
                boxes.arrive(writer, rounds[place], parts[writer][place], place)
        found = ranks.sum(parts[RANK].clone().to(device))
        assert torch.equal(found.cpu(), (parts[0] + parts[1]) + parts[2])
    assert boxes.mailboxes.state[:3].tolist() == [5, 2, 0]
    ranks.check()


def test_what_is_longer_than_a_mailbox_goes_round_by_round(device: torch.device) -> None:
    boxes = Boxes.empty(device)
    ranks = PeerCollectives(boxes.mailboxes, timeout=1)
    chunk = CHUNK_BYTES // 4
    width = (PLACES + 2) * chunk + 5
    parts = [part_of(rank, 1, (1, width), torch.float32) for rank in range(RANKS)]
    # Both halves at once, from a peer one round ahead.
    for writer in (0, 2):
        for round, part in enumerate(parts[writer].split(PLACES * chunk, dim=1), 1):
            boxes.arrive(writer, round, part.contiguous())
    found = ranks.sum(parts[RANK].clone().to(device))
    assert torch.equal(found.cpu(), (parts[0] + parts[1]) + parts[2])
    assert boxes.mailboxes.state[:PLACES].tolist() == [2] * 3 + [1] * (PLACES - 3)


def test_numbers_of_rounds_wrap(device: torch.device) -> None:
    boxes = Boxes.empty(device)
    ranks = PeerCollectives(boxes.mailboxes, timeout=1)
    last = (1 << 31) - 1
    boxes.mailboxes.state[0] = last - 1
    part = part_of(0, 1, (1, 16), torch.float32)
    for round in (last, -(1 << 31), 1 - (1 << 31)):
        for writer in (0, 2):
            boxes.arrive(writer, round, part)
        assert torch.equal(ranks.sum(part.clone().to(device)).cpu(), (part + part) + part)
    ranks.check()


def test_a_rank_that_does_not_come_ends_the_wait(device: torch.device) -> None:
    boxes = Boxes.empty(device)
    ranks = PeerCollectives(boxes.mailboxes, timeout=2e-5)
    part = part_of(0, 1, (1, 16), torch.float32)
    boxes.arrive(0, 1, part)
    ranks.check()
    ranks.sum(part.clone().to(device))
    if device.type == "cuda":
        torch.cuda.synchronize()
    with pytest.raises(RankTimedOut, match="rank 1 waited in vain"):
        ranks.check()
    assert boxes.mailboxes.state[PLACES] == 1


def test_who_gave_up_once_waits_for_nothing_any_more(device: torch.device) -> None:
    """A wait of hours would show."""
    boxes = Boxes.empty(device)
    ranks = PeerCollectives(boxes.mailboxes, timeout=1e9)
    boxes.mailboxes.state[PLACES] = 1
    ranks.sum(torch.zeros(1, 16, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize()
    with pytest.raises(RankTimedOut):
        ranks.check()


def test_an_abandoned_wait_ends(device: torch.device) -> None:
    boxes = Boxes.empty(device)
    # It looks at its first turn: of the interpreter's a thousand take seconds.
    ranks = PeerCollectives(boxes.mailboxes, timeout=(1000 * LOOK_SPINS + 1.5) / 1e6)
    ranks.abandon()
    ranks.sum(torch.zeros(1, 16, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize()
    with pytest.raises(RankTimedOut):
        ranks.check()
