"""Kernel storing scattered segments of an arena into a peer's arena, mapped into this process.

Segments are cut into blocks of CHUNK_BYTES; programs take turns of consecutive blocks. Short turns
keep the whole grid on few pages of memory at a time. Long turns let a program with few neighbours
look a segment up once for many blocks.

Before it writes, a program reads the peer's gate. If the gate's word differs from its permission it
writes nothing. After it wrote, it releases at system scope. The last program sets the flag to 1, so
a flag still 0 means a shut gate for some program. Bytes are read and written once: the floor is the
link. Thread rule: the same as for any launch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from tasuki.transfer.chunks.descriptors import Segments
from tasuki.utils.triton.kernel_spec import KernelSpec

ALIGNMENT = 16
"""Alignment in bytes required of segments' offsets and lengths."""
CHUNK_BYTES = 32 * 1024
_WARPS = 16


@dataclass(frozen=True)
class Target:
    """A peer's arena and gate, as addresses here. permission: the gate's word while writable."""

    arena: int
    gate: int
    permission: int


@dataclass(frozen=True)
class Grid:
    """Launch grid of the store kernel. programs: number of storing programs. turn: number of
    consecutive blocks taken by a program at a time."""

    programs: int
    turn: int


def launch_store(
    source: int, target: Target, table: torch.Tensor, segments: int, flag: int, grid: Grid
) -> Any:
    """Write every segment of the table to the peer on the current stream, then 1 to the int32 at
    `flag`. Return the compiled Triton kernel. Layer chunks are launched without this function
    (cpp_cache/dataplane/peer_writer.h).

    source: address of this process's arena. table: on the device, as written by fill_piece_table
    with blocks of CHUNK_BYTES. flag: address in host memory writable by the device. Addresses and
    the permission need more than 32 bits.
    """
    # No argument is specialised on, so the kernel is compiled once.
    return _store_kernel[(grid.programs,)](
        source,
        target.arena,
        target.gate,
        target.permission,
        table,
        segments,
        grid.turn,
        flag,
        CHUNK_BYTES // 8,
        num_warps=_WARPS,
    )


def naive_store_segments(
    source: NDArray[np.uint8], target: NDArray[np.uint8], segments: Segments
) -> None:
    """Copy the segments between arrays: the reference of launch_store, with the gate open."""
    for local, remote, length in segments.tolist():
        target[remote : remote + length] = source[local : local + length]


@triton.jit(do_not_specialize=["source", "target", "gate", "permission", "pieces", "turn", "flag"])
def _store_kernel(
    source, target, gate, permission, table, segments, turn, flag, CHUNK: tl.constexpr
):
    if tl.load(gate.to(tl.pointer_type(tl.int64)), volatile=True) != permission:
        return
    read = tl.multiple_of(source.to(tl.pointer_type(tl.int64)), 16)
    write = tl.multiple_of(target.to(tl.pointer_type(tl.int64)), 16)
    programs = tl.num_programs(0)
    local_column = table + 2
    remote_column = local_column + segments
    length_column = remote_column + segments
    first_column = length_column + segments
    chunks = tl.load(first_column + segments)
    begin = tl.program_id(0).to(tl.int64) * turn
    while begin < chunks:
        chunk = begin
        end = tl.minimum(begin + turn, chunks)
        # The last segment with a first chunk at or before ours.
        segment = segments * 0
        above = segments
        while above - segment > 1:
            middle = (segment + above) // 2
            if tl.load(first_column + middle) <= chunk:
                segment = middle
            else:
                above = middle
        while chunk < end:
            # In halves of 16 bytes, so the compiler sees wide words.
            local = tl.load(local_column + segment) * 2
            remote = tl.load(remote_column + segment) * 2
            words = tl.load(length_column + segment) * 2
            first = tl.load(first_column + segment)
            stop = tl.minimum(tl.load(first_column + segment + 1), end)
            while chunk < stop:
                word = (chunk - first) * CHUNK + tl.arange(0, CHUNK)
                inside = word < words
                value = tl.load(read + local + word, mask=inside)
                tl.store(write + remote + word, value, mask=inside)
                chunk += 1
            segment += 1
        begin += programs.to(tl.int64) * turn
    # All threads of the program must have stored before one of them releases for all.
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
                "turn": "i32",
                "flag": "i64",
            },
            constants={"CHUNK": CHUNK_BYTES // 8},
            num_warps=_WARPS,
        )
    ]
