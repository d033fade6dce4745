"""What all ranks computed, summed or side by side on each of them, by stores into peers' memory.

Every rank has a mailbox that its peers have mapped (mailboxes.py). Program b of a rank stores its
chunk into place b of every peer's mailbox, raises its flag there, and waits for the flags of
program b of all peers: programs of other numbers it never waits for. A flag is a number that grows
by one a round, and is released and acquired at system scope.

Rounds take turns with two halves of the mailbox. A peer's data of round n is overwritten in round
n + 2, which begins once that peer's flag of round n + 1 is seen; the peer raised that behind its
own reads of round n. So nothing waits but for data; tests/parallel/test_exchange_model.py has every
interleaving.

Sums are added in rank order in float32 and rounded once: the same bits on every rank. A wait has a
bound: behind it a rank sets its error word, takes what there is, and waits for nothing any more.
Numbers of rounds stay on the device, so that a CUDA graph may hold these launches. Thread rule: one
stream a mailbox, the same launches in the same order on every rank.
"""

import triton
import triton.language as tl

from tasuki.utils.triton.dependent_launch import wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

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
