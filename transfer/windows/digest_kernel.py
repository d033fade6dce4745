"""Digests of windows on a GPU, equal to digest.py's WindowDigester bit for bit (its twin).

A window is rows of whole blocks or states. Four programs sum words x keys of a row (uint64, so
wrapping and in any order), a second launch mixes each row's sum with the row's identity and adds
up. Bytes read once: the floor is memory bandwidth. Keys come from L2, where they stay.

Thread rule: one thread at a time per digester; work is queued on a stream of its own, which waits
for nothing: the caller knows that the window's writes are done (its layer's event has fired).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from tasuki.pycache.layout import CacheLayout
from tasuki.utils.triton.kernel_spec import KernelSpec

from .digest import MASK, Digester, WindowRows, window_geometry, word_keys
from .unit_sizes import UnitSizes
from .window import WindowHeader

# What a head has of a page's block is four chunks in the published shapes.
_PARTS = 4
_CHUNK = 2048
_BLOCK = 1024
_WARPS = 4
_HIGH_PRIORITY = -1


class GpuWindowDigester(Digester):
    """Digests windows out of one arena in a GPU's memory.

    memory: the arena's bytes, uint8 [slabs * slab_bytes] on the device, shared and never copied.
    sizes: of units on the wire; the layout's own by default.
    """

    def __init__(
        self, memory: torch.Tensor, layout: CacheLayout, sizes: UnitSizes | None = None
    ) -> None:
        self._windows = window_geometry(layout, sizes)
        self._words = memory.view(torch.int64)
        most = max(layout.block_bytes, layout.state_layer_bytes, layout.carry_bytes) // 8
        self._keys = torch.from_numpy(word_keys(most).view(np.int64)).to(memory.device)
        # Before the blocks of a forward that wait for a place: a window's end waits for this.
        self._stream = (
            torch.cuda.Stream(memory.device, priority=_HIGH_PRIORITY) if memory.is_cuda else None
        )
        if memory.is_cuda:
            # Compiled before a peer waits for it.
            self.digest_rows(WindowRows(*np.zeros((3, 1), dtype=np.int64)))

    def digest(
        self,
        room: int,
        generation: int,
        header: WindowHeader,
        pages: Sequence[int],
        slot: int | None,
    ) -> int:
        """As digest_rows: blocks until the GPU has answered, on this stream alone."""
        return self._digest(
            *self._windows.rows(
                room,
                generation,
                header.first_layer,
                header.end_layer,
                header.first_page,
                pages,
                slot,
            )
        )

    def digest_rows(self, rows: WindowRows) -> int:
        return self._digest(len(rows.offsets), rows.table())

    def _digest(self, count: int, table: NDArray[np.int64]) -> int:
        with torch.cuda.stream(self._stream):
            placed = PlacedRows.on(self._words.device, count, table)
            return int(digest_rows(self._words, self._keys, placed).item()) & MASK


@dataclass(frozen=True)
class PlacedRows:
    """`WindowRows` on the arena's device."""

    offsets: torch.Tensor
    lengths: torch.Tensor
    seeds: torch.Tensor

    @staticmethod
    def on(device: torch.device, count: int, table: NDArray[np.int64]) -> "PlacedRows":
        """table [3, at least count]: as `WindowRows.table`."""
        # One copy: each costs as much as all three.
        there = torch.from_numpy(table).to(device, non_blocking=True)
        return PlacedRows(*there[:, :count])


def digest_rows(words: torch.Tensor, keys: torch.Tensor, rows: PlacedRows) -> torch.Tensor:
    """The digest [1] int64 (its bits) of the rows, on the current stream.

    words [n] int64: the arena; keys [at least the longest row] int64.
    """
    total = torch.zeros(1, dtype=torch.int64, device=words.device)
    count = len(rows.offsets)
    if count == 0:
        return total
    partial = torch.empty(count, _PARTS, dtype=torch.int64, device=words.device)
    _sum_kernel[(count, _PARTS)](
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
    _mix_kernel[(count,)](partial, rows.seeds, total, PARTS=_PARTS, num_warps=1)
    return total


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
def _mix_kernel(partial, seeds, total, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    value = tl.sum(tl.load(partial + row * PARTS + tl.arange(0, PARTS)), 0)
    # Modular addition commutes, so the order in which rows arrive does not show.
    tl.atomic_add(total, _splitmix64(tl.load(seeds + row) ^ value))


@triton.jit
def _splitmix64(value):
    """As digest.splitmix64, on the bits of an int64."""
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
            signature={"partial": "*i64", "seeds": "*i64", "total": "*i64"},
            constants={"PARTS": _PARTS},
            num_warps=1,
        ),
    ]
