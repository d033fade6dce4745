"""Exchange between ranks with one GPU each, through memory mapped by all of them.

`exchange_kernel()` sums the ranks' results, or lays them side by side, on each rank. It stores into
peers' memory.

Every rank has a mailbox, mapped by its peers (`Mailboxes`). Program b of a rank stores its chunk
into place b of every peer's mailbox and raises its flag there. It then waits for the flags of
program b of all peers, and never for other programs. A flag is a number and grows by one a round.
It is released and acquired at system scope. Rounds alternate between two halves of the mailbox. A
peer's data of round n is overwritten in round n + 2. Round n + 2 begins once the peer's flag of
round n + 1 is seen. The peer raised this flag after its own reads of round n. So every wait is for
data only; tests/parallel/test_exchange_model.py covers every interleaving. Sums are added in rank
order in float32 and rounded once: the same bits on every rank. A wait has a bound. After it a rank
sets its error word, takes the data present, and never waits again. Numbers of rounds stay on the
device, so a CUDA graph may contain these launches. Thread rule: one stream a mailbox, the same
launches in the same order on every rank.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.transfer.transports.base import RankMemory
from tasuki.transfer.transports.nvlink.cuda_ipc import CudaIpc, Export
from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .collectives import Exchange, RankTimedOut

PLACES = 512
"""Chunks in a half of the mailbox for each peer: the most programs of a kernel launch."""
CHUNK_BYTES = 8192
WARPS = 16
FLAGS_BYTES = 4
HALVES = 2
LOOK_SPINS = 1 << 16
"""Looks at a flag, 0.2 us each, between two looks of a program at the host's word (its order to
give up). Programs take turns, because a look crosses PCIe for each warp. If all looked together,
their next round would be late. Their peers would then wait and look too."""

_LOOK_SPINS = tl.constexpr(LOOK_SPINS)
_FLAGS_BYTES = tl.constexpr(FLAGS_BYTES)


def data_offset(ranks: int) -> int:
    """Return the byte offset of the data chunks in a mailbox, after the flags [ranks, PLACES]."""
    return ranks * PLACES * FLAGS_BYTES


def mailbox_bytes(ranks: int) -> int:
    """Return the size of a mailbox in bytes. Its chunks are [HALVES, ranks, PLACES, CHUNK_BYTES],
    by the rank writing them."""
    return data_offset(ranks) + HALVES * ranks * PLACES * CHUNK_BYTES


@triton.jit
def _flag(mailbox, writer, PLACES: tl.constexpr):
    """Return the address of the flag raised by rank `writer` in the mailbox, for this program."""
    at = (writer * PLACES + tl.program_id(0)).to(tl.int64) * _FLAGS_BYTES
    return (mailbox + at).to(tl.pointer_type(tl.int32))


@triton.jit
def _chunk(
    mailbox, writer, round, like, RANKS: tl.constexpr, PLACES: tl.constexpr, BYTES: tl.constexpr
):
    """Return the address of the chunk stored by rank `writer` in the mailbox, for this program and
    round."""
    place = ((round & 1) * RANKS + writer) * PLACES + tl.program_id(0)
    at = RANKS * PLACES * _FLAGS_BYTES + place.to(tl.int64) * BYTES
    return tl.multiple_of((mailbox + at).to(like.dtype), 16)


@triton.jit
def _give(
    own,
    inside,
    like,
    mailboxes,
    round,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    PLACES: tl.constexpr,
    CHUNK: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Store this program's chunk in every peer's mailbox, then raise its flag there."""
    column = tl.arange(0, CHUNK)
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            mailbox = tl.load(mailboxes + peer)
            there = _chunk(mailbox, RANK, round, like, RANKS, PLACES, BYTES)
            tl.store(there + column, own, mask=inside)
    # All threads of the program have stored before one of them releases for all.
    tl.debug_barrier()
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            flag = _flag(tl.load(mailboxes + peer), RANK, PLACES)
            tl.atomic_xchg(flag, round, sem="release", scope="sys")


@triton.jit
def _word(words, number):
    """Return the address of word `number` in host memory. words: address of the first word."""
    return words.to(tl.pointer_type(tl.int32)) + number


@triton.jit
def _wait(mailbox, peer, round, spins, words, PLACES: tl.constexpr):
    """Wait for the peer's chunk of the round; return True if it arrived. words: see Mailboxes."""
    flag = _flag(mailbox, peer, PLACES)
    left = spins
    # Compare by difference, because round numbers wrap.
    late = tl.load(flag, volatile=True) - round < 0
    while late & (left > 0):
        left -= 1
        if (left - tl.program_id(0) * (_LOOK_SPINS // PLACES)) % _LOOK_SPINS == 0:
            left = tl.where(tl.load(_word(words, 1), volatile=True) != 0, 0, left)
        late = tl.load(flag, volatile=True) - round < 0
    # The value is used, or the compiler would drop the load. Then writes before the flag might stay
    # unseen. One thread acquires for all.
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    tl.debug_barrier()
    return seen - round >= 0


@triton.jit
def _received(
    mailbox,
    peer,
    inside,
    like,
    round,
    RANKS: tl.constexpr,
    PLACES: tl.constexpr,
    CHUNK: tl.constexpr,
    BYTES: tl.constexpr,
):
    here = _chunk(mailbox, peer, round, like, RANKS, PLACES, BYTES)
    return tl.load(here + tl.arange(0, CHUNK), mask=inside, other=0.0, cache_modifier=".cg")


@triton.jit
def _give_up(state, words, PLACES: tl.constexpr):
    tl.store(state + PLACES, 1)
    tl.store(_word(words, 0), 1)


@triton.jit(do_not_specialize=["words", "spins"])
def exchange_kernel(
    partial,
    output,
    mailboxes,
    state,
    words,
    count,
    columns,
    spins,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    PLACES: tl.constexpr,
    CHUNK: tl.constexpr,
    BYTES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Exchange the tensor `partial`, of `count` elements, between all ranks. columns None: output
    [count] is the ranks' sum, and may be the same memory. Otherwise partial is [rows, columns], and
    output [rows, RANKS, columns] has all ranks' side by side. mailboxes [RANKS] int64: addresses.
    state [PLACES + 1] int32: rounds so far of each program, and a flag for a wait given up. words:
    address of Mailboxes.words."""
    program = tl.program_id(0)
    wait_for_inputs(DEPENDENT)
    round = tl.load(state + program)
    left = tl.where(tl.load(state + PLACES) != 0, 0, spins)
    mailbox = tl.load(mailboxes + RANK)
    begin = program * CHUNK
    while begin < count:
        round += 1
        at = begin + tl.arange(0, CHUNK)
        inside = at < count
        own = tl.load(partial + at, mask=inside, other=0.0)
        _give(own, inside, partial, mailboxes, round, RANK, RANKS, PLACES, CHUNK, BYTES)
        arrived = True
        total = tl.zeros([CHUNK], tl.float32)
        to = at.to(tl.int64)
        if columns is not None:
            to = (at // columns).to(tl.int64) * (RANKS * columns) + at % columns
        for peer in tl.static_range(RANKS):
            if peer == RANK:
                part = own
            else:
                arrived = arrived & _wait(mailbox, peer, round, left, words, PLACES)
                part = _received(mailbox, peer, inside, partial, round, RANKS, PLACES, CHUNK, BYTES)
            if columns is not None:
                tl.store(output + to + peer * columns, part, mask=inside)
            else:
                total = part.to(tl.float32) if peer == 0 else total + part.to(tl.float32)
        if not arrived:
            left = left * 0
            _give_up(state, words, PLACES)
        if columns is None:
            tl.store(output + to, total.to(output.dtype.element_ty), mask=inside)
        begin += tl.num_programs(0) * CHUNK
    tl.store(state + program, round)


def compile_specs() -> list[KernelSpec]:
    """Return the exchange kernels to compile ahead, for rank 1 of 2."""

    def spec(name: str, dtype: str, size: int, *, gathers: bool) -> KernelSpec:
        columns = {"columns": "i32:16"} if gathers else {}
        return KernelSpec(
            name=name,
            kernel=exchange_kernel,
            signature={
                "partial": f"*{dtype}",
                "output": f"*{dtype}",
                "mailboxes": "*i64",
                "state": "*i32",
                "words": "i64",
                "count": "i32:16",
                **columns,
                "spins": "i32",
            },
            constants={
                "RANK": 1,
                "RANKS": 2,
                "PLACES": PLACES,
                "CHUNK": CHUNK_BYTES // size,
                "BYTES": CHUNK_BYTES,
                "DEPENDENT": True,
            }
            | ({} if gathers else {"columns": None}),
            num_warps=WARPS,
        )

    return [
        spec(f"ranks_{'gather' if gathers else 'sum'}_{dtype}", dtype, size, gathers=gathers)
        for gathers in (False, True)
        for dtype, size in (("bf16", 2), ("fp32", 4))
    ]


@dataclass(frozen=True)
class Mailboxes:
    """Every rank's mailbox on its own GPU, mapped by all others: the targets of their kernels'
    stores.

    Owns this rank's mailbox and the mappings of the others', until the process ends. A peer's
    kernel may use them until then. Knows nothing of the exchanged data. Made on the thread of the
    forward.

    addresses [ranks] int64 on the device: every rank's mailbox, as mapped in this process. state
    [PLACES + 1] int32 on the device, kept by kernels. words [2] int32, pinned: nonzero if a wait
    was given up here; nonzero if all waits must end.
    """

    rank: int
    addresses: Tensor
    state: Tensor
    words: Tensor

    @staticmethod
    def met(exchange: Exchange, rank: int, device: torch.device) -> "Mailboxes":
        """Make this rank's mailbox and map the others'; return once every rank has made its own.
        Raises TransportError if memory cannot be shared."""
        torch.cuda.set_device(device)
        ipc = CudaIpc(torch.cuda.current_device())
        # The size depends on the number of ranks, found by this exchange.
        ranks = len(exchange(bytes(1)))
        size = mailbox_bytes(ranks)
        own = ipc.allocate(size)
        ipc.clear(own, size)
        addresses = [
            own if peer == rank else ipc.open(Export.unpacked(theirs)[0], size)
            for peer, theirs in enumerate(exchange(ipc.export(own).packed()))
        ]
        return Mailboxes(
            rank,
            torch.tensor(addresses, dtype=torch.int64, device=device),
            torch.zeros(PLACES + 1, dtype=torch.int32, device=device),
            torch.zeros(2, dtype=torch.int32, pin_memory=True),
        )

    @property
    def ranks(self) -> int:
        return len(self.addresses)

    def check(self) -> None:
        """Check a completed forward. Raises RankTimedOut if a kernel gave up waiting."""
        if self.words[0]:
            raise RankTimedOut(
                f"rank {self.rank} waited in vain for another rank inside a forward: its result is "
                "worthless, and no other forward can succeed; restart the node"
            )

    def abandon(self) -> None:
        """End all kernels' waits, including waits in progress. Any thread."""
        self.words[1] = 1


def exchanged_arenas(exchange: Exchange, rank: int, arena: Tensor) -> list[RankMemory]:
    """Exchange handles of the arenas of ranks with one GPU each. Return all ranks' arenas, in rank
    order. Addresses are the ones mapped in the leader's process. The leader alone sends from the
    arenas and receives into them. Its peers' processes map them too.

    The mappings last until the process ends, because a peer's kernel, or a digest, may still use
    them. Called on the thread of the forward, on every rank.

    arena: this rank's memory, of equal size on every rank. Raises TransportError if memory cannot
    be shared.
    """
    ipc = CudaIpc(arena.get_device())
    gpu = str(torch.cuda.get_device_properties(arena.device).uuid)
    found = []
    packed = ipc.export(arena.data_ptr()).packed() + gpu.encode()
    for peer, theirs in enumerate(exchange(packed)):
        export, of_gpu = Export.unpacked(theirs)
        address = arena.data_ptr()
        if peer != rank:
            # A follower maps no peer, because it sends nothing.
            address = ipc.open(export, arena.nbytes) if rank == 0 else 0
        found.append(RankMemory(address, export.handle, export.offset, of_gpu.decode()))
    return found


_SPINS_A_SECOND = 1_000_000
"""Most looks at a flag per second: one look takes half a microsecond to a microsecond."""
_MOST_SPINS = (1 << 31) - 1


class PeerCollectives:
    """Collectives of ranks with one GPU each: one kernel, in CUDA graphs and outside of them.

    A rank's part is stored unchanged into its peers' memory, so a sum carries n - 1 times its
    bytes. For two ranks no method carries fewer. The host never waits. Thread rule: one stream.

    Implements Collectives. timeout: seconds a kernel waits for the slowest rank. It may wait up
    to twice as long.
    """

    begun = 0

    def __init__(self, mailboxes: Mailboxes, timeout: float) -> None:
        self._mailboxes = mailboxes
        self._spins = min(int(timeout * _SPINS_A_SECOND), _MOST_SPINS)

    def sum(self, partial: Tensor) -> Tensor:
        partial = partial.contiguous()
        self._launch(partial, partial, None)
        return partial

    def gather(self, partial: Tensor) -> Tensor:
        partial = partial.contiguous()
        columns = partial.shape[-1]
        output = partial.new_empty(*partial.shape[:-1], self._mailboxes.ranks * columns)
        self._launch(partial, output, columns)
        return output

    def of_leader(self, own: Tensor) -> Tensor:
        return self.gather(own.view(1, -1))[0, : own.numel()].view(own.shape)

    def check(self) -> None:
        self._mailboxes.check()

    def abandon(self) -> None:
        self._mailboxes.abandon()

    def _launch(self, partial: Tensor, output: Tensor, columns: int | None) -> None:
        mailboxes, chunk = self._mailboxes, CHUNK_BYTES // partial.element_size()
        programs = min(triton.cdiv(partial.numel(), chunk), PLACES)
        exchange_kernel[(programs,)](
            partial,
            output,
            mailboxes.addresses,
            mailboxes.state,
            mailboxes.words.data_ptr(),
            partial.numel(),
            columns,
            self._spins,
            RANK=mailboxes.rank,
            RANKS=mailboxes.ranks,
            PLACES=PLACES,
            CHUNK=chunk,
            BYTES=CHUNK_BYTES,
            num_warps=WARPS,
            **dependent(partial),
        )
