"""Stores scattered pieces of an arena into a peer's, whose memory is mapped into this process.

Pieces are cut into chunks; each program takes one run of consecutive chunks, so that it looks a
piece up once however long it is, and few programs suffice where the GPU has other work. Before it
writes, a program reads the peer's gate: where the permission it was given is no longer the gate's
value it writes nothing. After it wrote, it releases at system scope; the last one raises the flag,
so a flag that is down says that some program found the gate shut.

Bytes are read and written once: the floor is the link. Thread rule: as of any launch.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from ...pycache.kernel_spec import KernelSpec
from ..descriptors import Pieces

ALIGNMENT = 16
"""Bytes: what offsets and lengths of pieces are multiples of."""
_CHUNK_BYTES = 32 * 1024
_WARPS = 16
_HEAD = 2
_COLUMNS = 4


@dataclass(frozen=True)
class Target:
    """A peer's arena and gate as addresses in this process, and the value that permits to write."""

    arena: int
    gate: int
    permission: int


def table_words(pieces: int) -> int:
    """Length of the table of that many pieces, in int64 words."""
    return _HEAD + _COLUMNS * (pieces + 1)


def fill_table(table: NDArray[np.int64], pieces: Pieces) -> int:
    """Write the launch's table; how many chunks it has.

    table [at least table_words(len(pieces))]. REQUIRES: pieces are multiples of ALIGNMENT.
    """
    count = len(pieces)
    rows = table[_HEAD : table_words(count)].reshape(count + 1, _COLUMNS)
    rows[:count, :3] = pieces // ALIGNMENT
    rows[0, 3] = 0
    np.cumsum(-(-pieces[:, 2] // _CHUNK_BYTES), out=rows[1:, 3])
    # How many programs are done.
    table[0] = 0
    return int(rows[count, 3])


def store_pieces(
    source: int, target: Target, table: torch.Tensor, pieces: int, flag: int, programs: int
) -> None:
    """Write every piece of the filled table on the current stream, then 1 to the int32 at `flag`.

    source: address of this side's arena. table: on the device, as fill_table wrote it. flag: of
    host memory that the device can write.
    """
    _store_kernel[(programs,)](
        source,
        target.arena,
        target.gate,
        target.permission,
        table,
        pieces,
        flag,
        CHUNK=_CHUNK_BYTES // 8,
        num_warps=_WARPS,
    )


def naive_store_pieces(
    source: NDArray[np.uint8], target: NDArray[np.uint8], pieces: Pieces
) -> None:
    """The twin of store_pieces on arrays, with the gate open."""
    for local, remote, length in pieces.tolist():
        target[remote : remote + length] = source[local : local + length]


@triton.jit(
    do_not_specialize=["source", "target", "gate", "permission", "pieces", "flag"],
)
def _store_kernel(source, target, gate, permission, table, pieces, flag, CHUNK: tl.constexpr):
    if tl.load(gate.to(tl.pointer_type(tl.int64)), volatile=True) != permission:
        return
    read = tl.multiple_of(source.to(tl.pointer_type(tl.int64)), 16)
    write = tl.multiple_of(target.to(tl.pointer_type(tl.int64)), 16)
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    rows = table + 2
    chunks = tl.load(rows + 4 * pieces + 3)
    chunk = chunks * program // programs
    end = chunks * (program + 1) // programs
    # The last row whose first chunk is not behind ours.
    row = pieces * 0
    above = pieces
    while above - row > 1:
        middle = (row + above) // 2
        if tl.load(rows + 4 * middle + 3) <= chunk:
            row = middle
        else:
            above = middle
    while chunk < end:
        at = rows + 4 * row
        # Halves of 16 bytes, so that the compiler sees wide words.
        local = tl.load(at) * 2
        remote = tl.load(at + 1) * 2
        words = tl.load(at + 2) * 2
        first = tl.load(at + 3)
        stop = tl.minimum(tl.load(at + 7), end)
        while chunk < stop:
            word = (chunk - first) * CHUNK + tl.arange(0, CHUNK)
            inside = word < words
            value = tl.load(read + local + word, mask=inside)
            tl.store(write + remote + word, value, mask=inside)
            chunk += 1
        row += 1
    # All threads of the program have stored before one of them releases for all.
    tl.debug_barrier()
    done = tl.atomic_add(table, 1, sem="acq_rel", scope="sys")
    if done == programs - 1:
        tl.store(flag.to(tl.pointer_type(tl.int32)), 1)


def compile_specs() -> list[KernelSpec]:
    return [
        KernelSpec(
            name="peer_store",
            kernel=_store_kernel,
            signature={
                "source": "i64",
                "target": "i64",
                "gate": "i64",
                "permission": "i64",
                "table": "*i64",
                "pieces": "i32",
                "flag": "i64",
            },
            constants={"CHUNK": _CHUNK_BYTES // 8},
            num_warps=_WARPS,
        )
    ]
