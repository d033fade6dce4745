"""Exchange between ranks that have a GPU each, through memory that all of them map.

`exchange_kernel()` sums the ranks' results, or lays them side by side, on each rank, by stores into
peers' memory.

Every rank has a mailbox that its peers have mapped (`Mailboxes`). Program b of a rank stores its
chunk into place b of every peer's mailbox, raises its flag there, and waits for the flags of
program b of all peers: programs of other numbers it never waits for. A flag is a number that grows
by one a round, and is released and acquired at system scope.
Rounds take turns with two halves of the mailbox. A peer's data of round n is overwritten in round n
+ 2, which begins once that peer's flag of round n + 1 is seen; the peer raised that behind its own
reads of round n. So nothing waits but for data; tests/parallel/test_exchange_model.py has every
interleaving.
Sums are added in rank order in float32 and rounded once: the same bits on every rank. A wait has a
bound: behind it a rank sets its error word, takes what there is, and waits for nothing any more.
Numbers of rounds stay on the device, so that a CUDA graph may hold these launches. Thread rule: one
stream a mailbox, the same launches in the same order on every rank.
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

from .collectives import Exchange, RankSilent

PLACES = 512
"""Of a half, for each peer: programs of a launch at most."""
CHUNK_BYTES = 8192
WARPS = 16
FLAGS_BYTES = 4
HALVES = 2
LOOK_SPINS = 1 << 16
"""Looks at a flag, of 0.2 us, between two of a program at the host's word. Programs take turns: a
look goes across PCIe for each warp, and looks of all at once would hold up their next round, so
that their peers wait, and look, too."""

_LOOK_SPINS = tl.constexpr(LOOK_SPINS)
_FLAGS_BYTES = tl.constexpr(FLAGS_BYTES)


def data_offset(ranks: int) -> int:
    """Where in a mailbox the chunks begin, behind the flags [ranks, PLACES]."""
    return ranks * PLACES * FLAGS_BYTES


def mailbox_bytes(ranks: int) -> int:
    """Chunks are [HALVES, ranks, PLACES, CHUNK_BYTES], by who wrote them."""
    return data_offset(ranks) + HALVES * ranks * PLACES * CHUNK_BYTES


@triton.jit
def _flag(mailbox, writer, PLACES: tl.constexpr):
    """In that mailbox, where `writer` raises it for this program."""
    at = (writer * PLACES + tl.program_id(0)).to(tl.int64) * _FLAGS_BYTES
    return (mailbox + at).to(tl.pointer_type(tl.int32))


@triton.jit
def _chunk(
    mailbox,
    writer,
    round,
    like,
    RANKS: tl.constexpr,
    PLACES: tl.constexpr,
    BYTES: tl.constexpr,
):
    """In that mailbox, where `writer` stores what this program has in that round."""
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
    """Store this program's chunk for every peer, then raise its flags."""
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
    """Of the host's memory, whose address words is."""
    return words.to(tl.pointer_type(tl.int32)) + number


@triton.jit
def _wait(mailbox, peer, round, spins, words, PLACES: tl.constexpr):
    """Until that peer's chunk of the round is here; whether it is. words: as of Mailboxes."""
    flag = _flag(mailbox, peer, PLACES)
    left = spins
    # As a difference: numbers of rounds wrap.
    late = tl.load(flag, volatile=True) - round < 0
    while late & (left > 0):
        left -= 1
        if (left - tl.program_id(0) * (_LOOK_SPINS // PLACES)) % _LOOK_SPINS == 0:
            left = tl.where(tl.load(_word(words, 1), volatile=True) != 0, 0, left)
        late = tl.load(flag, volatile=True) - round < 0
    # Its value is used, or the compiler would leave it out, and what was stored before the flag
    # might not be seen. One thread acquires for all.
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
    """All ranks' partial, of count elements. columns None: output [count] is their sum, and may be
    the same memory; else partial is [rows, columns], and output [rows, RANKS, columns] has them
    side by side. mailboxes [RANKS] int64: addresses; state [PLACES + 1] int32: rounds so far of
    each program, and whether a wait was given up; words: address of the host's, see Mailboxes."""
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
    """Rank 1 of 2."""

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
    """Every rank's mailbox on its own GPU, mapped by all others: what their kernels store into.

    Owns this rank's, and the mappings of the others', until the process ends: a peer's kernel may
    be under way there until then. Knows nothing of what travels. Made on the thread of the forward.

    addresses [ranks] int64 on the device: of every rank's mailbox, as this process has them mapped.
    state [PLACES + 1] int32 on the device, as kernels keep it. words [2] int32, pinned: whether a
    wait was given up here, and whether nobody is to wait any more.
    """

    rank: int
    addresses: Tensor
    state: Tensor
    words: Tensor

    @staticmethod
    def met(exchange: Exchange, rank: int, device: torch.device) -> "Mailboxes":
        """Once every rank has its own. Raises TransportError where memory cannot be shared."""
        torch.cuda.set_device(device)
        ipc = CudaIpc(torch.cuda.current_device())
        # Its size depends on the number of ranks, which this finds out.
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
        """Behind a forward. Raises RankSilent."""
        if self.words[0]:
            raise RankSilent(
                f"rank {self.rank} waited in vain for another rank inside a forward: its result is "
                "worthless, and no other forward can succeed; restart the node"
            )

    def abandon(self) -> None:
        """Have kernels wait for nobody any more, those under way too. From any thread."""
        self.words[1] = 1


def exchanged_arenas(exchange: Exchange, rank: int, arena: Tensor) -> list[RankMemory]:
    """The arenas of ranks that have a GPU each, as the leader's process has them mapped: it alone
    sends from them and receives into them, by peers' processes that map them too.

    The mappings last until the process ends: a kernel of a peer, or a digest, may be under way
    there until then. Called on the thread of the forward, on every rank.

    Every rank's, in rank order; of the leader's process, mapped there. arena: this rank's bytes, as
    many as every rank's. Raises TransportError where memory cannot be shared.
    """
    ipc = CudaIpc(arena.get_device())
    gpu = str(torch.cuda.get_device_properties(arena.device).uuid)
    found = []
    packed = ipc.export(arena.data_ptr()).packed() + gpu.encode()
    for peer, theirs in enumerate(exchange(packed)):
        export, of_gpu = Export.unpacked(theirs)
        address = arena.data_ptr()
        if peer != rank:
            # A follower maps nobody: it sends nothing.
            address = ipc.open(export, arena.nbytes) if rank == 0 else 0
        found.append(RankMemory(address, export.handle, export.offset, of_gpu.decode()))
    return found


_SPINS_A_SECOND = 1_000_000
"""At most: a look at a flag takes a microsecond or a half."""
_MOST_SPINS = (1 << 31) - 1


class PeerCollectives:
    """Collectives of ranks that have a GPU each: one kernel, in CUDA graphs and outside of them.

    A rank's part is stored into its peers' memory as it is, so a sum carries n - 1 times its bytes:
    for two ranks as few as any way does. Nothing waits on the host. Thread rule: one stream.

    As Collectives. timeout: seconds, and up to as many again, that a kernel waits for the slowest
    rank.
    """

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

    @property
    def begun(self) -> int:
        return 0

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
