"""Digests of layer chunks on a GPU, equal bit for bit to the reference, digest.py's ChunkDigester.

A chunk consists of rows of whole blocks or states. Four programs sum a row's words times their keys
(uint64, so wrapping and in any order). A second launch mixes each row's sum with the row's identity
and adds it to its chunk's digest. Any number of chunks costs two launches, one copy to the GPU and
one back. Bytes are read once: the floor is memory bandwidth. Keys stay in L2.

Thread rule: any thread, one at a time per digester. Work is queued on a stream of its own, without
waits. REQUIRES: the chunk's bytes are written (its layer's event has fired).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import CudaContext, GpuDigester
from tasuki.pycache.layout import CacheLayout
from tasuki.utils.triton.kernel_spec import KernelSpec, kernel_handle

from .descriptors import UnitSizes
from .digest import ArenaChunk, ChunkRows, Digester, chunk_geometry, word_keys

# A head's share of a page's block is four chunks in the published shapes.
_PARTS = 4
_CHUNK = 2048
_BLOCK = 1024
_WARPS = 4


class GpuChunkDigester(Digester):
    """Digester of one arena in a GPU's memory; launches, waits and reads back without the GIL
    (cpp_cache/dataplane/gpu_digester.h). memory: the arena's bytes, uint8 [slabs * slab_bytes] on
    the device, shared and never copied. sizes: of units on the wire; by default the layout's."""

    def __init__(
        self, memory: torch.Tensor, layout: CacheLayout, sizes: UnitSizes | None = None
    ) -> None:
        words = memory.view(torch.int64)
        keys = word_keys(layout.longest_row // 8)
        self._keys = torch.from_numpy(keys.view(np.int64)).to(memory.device)
        with torch.cuda.device(memory.device):
            # Compile now, before a peer waits for it.
            placed = PlacedRows.on(memory.device, 1, np.zeros((5, 2), dtype=np.int64))
            self._compiled = digest_rows(words, self._keys, placed)
            torch.cuda.synchronize()
        sums, mix = self._compiled
        self._digester = GpuDigester(
            CudaContext(memory.get_device()),
            kernel_handle(sums),
            kernel_handle(mix),
            _PARTS,
            words.data_ptr(),
            self._keys.data_ptr(),
            chunk_geometry(layout, sizes),
        )

    @property
    def of_gpu(self) -> GpuDigester:
        return self._digester

    def digest_all(self, chunks: Sequence[ArenaChunk]) -> list[int]:
        """Return the digests; blocks for the GPU, and only for the digester's own stream."""
        return self._digester.digest_all([chunk.places for chunk in chunks])

    def digest_rows(self, rows: ChunkRows) -> int:
        return self._digester.digest(rows.offsets, rows.lengths, rows.seeds)


@dataclass(frozen=True)
class PlacedRows:
    """Table of `WindowGeometry.rows` on the arena's device, one tensor for each of its lines.
    digests: at least one entry for each chunk."""

    offsets: torch.Tensor
    lengths: torch.Tensor
    seeds: torch.Tensor
    windows: torch.Tensor
    digests: torch.Tensor

    @staticmethod
    def on(device: torch.device, count: int, table: NDArray[np.int64]) -> "PlacedRows":
        """Copy the table of rows to the device. count: number of rows in it. table: from
        `WindowGeometry.rows`, [5, at least count]."""
        # One copy, because a copy of one line costs as much as a copy of all five.
        there = torch.from_numpy(table).to(device, non_blocking=True)
        offsets, lengths, seeds, chunks = there[:4, :count].unbind()
        return PlacedRows(offsets, lengths, seeds, chunks, there[4])


def digest_rows(words: torch.Tensor, keys: torch.Tensor, rows: PlacedRows) -> tuple[Any, Any]:
    """Add the digests of all chunks (their bits) to rows.digests, on the current stream. Return
    both compiled Triton kernels, the summing one first.

    words: the arena, [n] int64. keys: the factors of word_keys(), int64, at least as many as the
    longest row has words. REQUIRES: at least one row.
    """
    count = len(rows.offsets)
    partial = torch.empty(count, _PARTS, dtype=torch.int64, device=words.device)
    sums = _sum_kernel[(count, _PARTS)](
        words,
        keys,
        rows.offsets,
        rows.lengths,
        partial,
        PARTS=_PARTS,
        CHUNK=_CHUNK,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    mix = _mix_kernel[(count,)](
        partial, rows.seeds, rows.windows, rows.digests, PARTS=_PARTS, num_warps=1
    )
    return sums, mix


@triton.jit
def _sum_kernel(
    words,
    keys,
    offsets,
    lengths,
    partial,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    base = words + tl.load(offsets + row)
    length = tl.load(lengths + row)
    total = tl.zeros([BLOCK], tl.int64)
    for chunk in range(part, (length + CHUNK - 1) // CHUNK, PARTS):
        for start in tl.static_range(0, CHUNK, BLOCK):
            index = chunk * CHUNK + start + tl.arange(0, BLOCK)
            inside = index < length
            total += tl.load(base + index, mask=inside, other=0) * tl.load(
                keys + index, mask=inside, other=0
            )
    tl.store(partial + row * PARTS + part, tl.sum(total, 0))


@triton.jit
def _mix_kernel(partial, seeds, chunks, digests, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    value = tl.sum(tl.load(partial + row * PARTS + tl.arange(0, PARTS)), 0)
    # Modular addition commutes, so the rows' order of arrival has no effect.
    chunk = tl.load(chunks + row)
    tl.atomic_add(digests + chunk, _splitmix64(tl.load(seeds + row) ^ value))


@triton.jit
def _splitmix64(value):
    """Mix as digest.splitmix64 does, on the bits of an int64."""
    mixed = value.to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
    return (mixed ^ (mixed >> 31)).to(tl.int64, bitcast=True)


def compile_specs() -> list[KernelSpec]:
    return [
        KernelSpec(
            name="digest_sum",
            kernel=_sum_kernel,
            signature={
                "words": "*i64",
                "keys": "*i64",
                "offsets": "*i64",
                "lengths": "*i64",
                "partial": "*i64",
            },
            constants={"PARTS": _PARTS, "CHUNK": _CHUNK, "BLOCK": _BLOCK},
            num_warps=_WARPS,
        ),
        KernelSpec(
            name="digest_mix",
            kernel=_mix_kernel,
            signature={"partial": "*i64", "seeds": "*i64", "windows": "*i64", "digests": "*i64"},
            constants={"PARTS": _PARTS},
            num_warps=1,
        ),
    ]
