"""Digests of windows on a GPU, equal to digest.py's WindowDigester bit for bit (its twin).

A window is rows of whole blocks or states. Four programs sum words x keys of a row (uint64, so
wrapping and in any order), a second launch mixes each row's sum with the row's identity and adds
it to its window's digest. However many windows are asked for at once, there are two launches, one
copy there and one back. Bytes are read once: the floor is memory bandwidth. Keys come from L2,
where they stay.

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

from .digest import (
    MASK,
    ArenaWindow,
    Digester,
    WindowRows,
    row_table,
    window_geometry,
    word_keys,
)
from .unit_sizes import UnitSizes

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

    def digest_all(self, windows: Sequence[ArenaWindow]) -> list[int]:
        """Blocks until the GPU has answered, on this stream alone."""
        rows, table = self._windows.rows([window.places for window in windows])
        return self._digest(len(windows), rows, table)

    def digest_rows(self, rows: WindowRows) -> int:
        return self._digest(1, len(rows.offsets), row_table([rows]))[0]

    def _digest(self, windows: int, rows: int, table: NDArray[np.int64]) -> list[int]:
        with torch.cuda.stream(self._stream):
            placed = PlacedRows.on(self._words.device, rows, table)
            digest_rows(self._words, self._keys, placed)
            found: list[int] = placed.digests[:windows].tolist()
        return [digest & MASK for digest in found]


@dataclass(frozen=True)
class PlacedRows:
    """`row_table` on the arena's device, its lines one by one; digests has more than one for each
    window."""

    offsets: torch.Tensor
    lengths: torch.Tensor
    seeds: torch.Tensor
    windows: torch.Tensor
    digests: torch.Tensor

    @staticmethod
    def on(device: torch.device, count: int, table: NDArray[np.int64]) -> "PlacedRows":
        """table [5, at least count]: as `row_table`, of that many rows."""
        # One copy: each costs as much as all five.
        there = torch.from_numpy(table).to(device, non_blocking=True)
        offsets, lengths, seeds, windows = there[:4, :count].unbind()
        return PlacedRows(offsets, lengths, seeds, windows, there[4])


def digest_rows(words: torch.Tensor, keys: torch.Tensor, rows: PlacedRows) -> None:
    """Add the digests of all windows (their bits) to rows.digests, on the current stream.

    words [n] int64: the arena; keys [at least the longest row] int64.
    """
    count = len(rows.offsets)
    if count == 0:
        return
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
    _mix_kernel[(count,)](
        partial, rows.seeds, rows.windows, rows.digests, PARTS=_PARTS, num_warps=1
    )


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
def _mix_kernel(partial, seeds, windows, digests, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    value = tl.sum(tl.load(partial + row * PARTS + tl.arange(0, PARTS)), 0)
    # Modular addition commutes, so the order in which rows arrive does not show.
    window = tl.load(windows + row)
    tl.atomic_add(digests + window, _splitmix64(tl.load(seeds + row) ^ value))


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
            signature={
                "partial": "*i64",
                "seeds": "*i64",
                "windows": "*i64",
                "digests": "*i64",
            },
            constants={"PARTS": _PARTS},
            num_warps=1,
        ),
    ]
