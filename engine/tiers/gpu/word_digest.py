"""Digests of pages and slots in a GPU's arena, computed by the same GPU."""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from tasuki.engine.tiers.copy_job import Segment
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import CacheLayout
from tasuki.utils.triton.kernel_spec import KernelSpec

from .moves import recorded

_LONGEST = 1 << 15
"""Most 8-byte words of a digest row. Only _PARTS programs sum a row, so long parts are split."""
_PARTS = 16
"""Kernel programs for each digest row. They are small, as a concurrent step waits for them."""
_BLOCK = 1024
_WARPS = 4
_LINES = 4

Rows = NDArray[np.int64]
"""Rows to be digested, int64 [4, n], one column each. A row is a contiguous part of a page or slot,
in 8-byte words. The entries: first word in the arena, length, first word's place within the page or
slot, index of the sums to add to."""


def rows_of_pages(layout: CacheLayout, region: int, pages: Sequence[int], first_unit: int) -> Rows:
    """Return one digest row for each page: its block in this region. The pages' sums have the
    indices from first_unit on."""
    words, count = layout.block_bytes // 8, len(pages)
    found = np.empty((_LINES, count), dtype=np.int64)
    found[0] = (np.asarray(pages, dtype=np.int64) + region * layout.pages_per_slab) * words
    found[1], found[2] = words, region * words
    found[3] = np.arange(first_unit, first_unit + count)
    return found


def rows_of_state(layout: CacheLayout, slot: int, offset: int, length: int, unit: int) -> Rows:
    """Return the digest rows for `length` bytes of the slot from byte `offset` on. unit: index of
    the slot's sums."""
    starts = np.arange(offset // 8, (offset + length) // 8, _LONGEST, dtype=np.int64)
    found = np.empty((_LINES, len(starts)), dtype=np.int64)
    found[0] = slot * (layout.slab_bytes // 8) + starts
    found[1] = np.minimum(_LONGEST, (offset + length) // 8 - starts)
    found[2], found[3] = starts, unit
    return found


def rows_of_job(layout: CacheLayout, pages: Sequence[int], slot: int | None) -> Rows:
    """Return the digest rows of the given pages and slot of an arena, in the order of
    layer_segments(). Indices of sums are the pages in order, then the slot."""
    unit = len(pages)
    found = [np.empty((_LINES, 0), np.int64)]
    if slot is not None:
        found += [rows_of_state(layout, slot, s.offset, s.length, unit) for s in layout.states]
    for region in layout.regions:
        found.append(rows_of_pages(layout, region.index, pages, 0))
    return np.concatenate(found, axis=1)


def rows_of_segment(segment: Segment) -> int:
    """Return the number of digest rows for the segment's data."""
    first, end = segment.pages
    return -(-segment.length // (8 * _LONGEST)) if segment.region is None else end - first


def add_rows(words: torch.Tensor, rows: torch.Tensor, sums: torch.Tensor) -> None:
    """Add the digests of rows [4, n] to sums, int64 [units, 2]. Entries of one kind are contiguous
    in `rows`. words: the arena, int64 [..]."""
    count = rows.shape[1]
    if count == 0:
        return
    _digest_kernel[(count, _PARTS)](
        words, rows, sums, rows.stride(0), PARTS=_PARTS, BLOCK=_BLOCK, num_warps=_WARPS
    )


def digests_of(sums: NDArray[np.int64]) -> list[int]:
    """Return 128-bit digests, each from two sums. sums: int64 [units, 2], on the host.

    A digest is two sums modulo 2^64 over the words of a page or slot. A word x has place p, counted
    within the page or slot and independent of its address. w = mix(x xor p * odd) adds to the first
    sum, remix(w) to the second. For one p both are bijections of x, so a change of one word always
    shows. Changes of several words are missed only if their differences cancel in both sums. This
    is one pair in 2^128, as far as the mixing is random. The order of additions does not matter, so
    a page is digested block by block on arrival. Like XXH3, the digest is not cryptographic: it
    protects against corrupt memory and misplaced copies.
    """
    pairs = sums.view(np.uint64).tolist()
    return [first << 64 | second for first, second in pairs]


@triton.jit(do_not_specialize=["rows", "stride"])
def _digest_kernel(words, rows, sums, stride, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row = rows + tl.program_id(0).to(tl.int64)
    base = words + tl.load(row)
    length = tl.load(row + stride)
    first = tl.load(row + 2 * stride)
    unit = tl.load(row + 3 * stride)
    total = tl.zeros([BLOCK], tl.uint64)
    again = tl.zeros([BLOCK], tl.uint64)
    for start in range(tl.program_id(1) * BLOCK, length, PARTS * BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < length
        word = tl.load(base + index, mask=inside, other=0).to(tl.uint64, bitcast=True)
        # Odd factors give no two places the same multiple.
        place = (first + index).to(tl.uint64) * 0xD6E8FEB86659FD93
        mixed = _mix(word ^ place)
        total += tl.where(inside, mixed, 0)
        again += tl.where(inside, _remix(mixed), 0)
    tl.atomic_add(sums + 2 * unit, tl.sum(total, 0).to(tl.int64, bitcast=True))
    tl.atomic_add(sums + 2 * unit + 1, tl.sum(again, 0).to(tl.int64, bitcast=True))


@triton.jit
def _mix(value):
    """Mix a word's bits by splitmix64's function, a bijection of 64 bits."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _remix(value):
    """Mix a word's bits again by MurmurHash3's function with other factors: also a bijection."""
    value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCD
    value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53
    return value ^ (value >> 33)


def compile_specs() -> list[KernelSpec]:
    return [
        KernelSpec(
            name="tier_digest",
            kernel=_digest_kernel,
            signature={"words": "*i64", "rows": "*i64:1", "sums": "*i64", "stride": "i32"},
            constants={"PARTS": _PARTS, "BLOCK": _BLOCK},
            num_warps=_WARPS,
        )
    ]


class ArenaSums:
    """The digests of a copy job's pages and slot in a GPU's arena, summed as their data arrives.

    Thread rule: one thread, with one stream as the current one. Work joins this stream.
    """

    def __init__(self, arena: Arena, pages: Sequence[int], slot: int | None) -> None:
        """pages, slot: ids in the arena. The digest rows go to the GPU here: a small copy between
        two large ones would delay the PCIe link."""
        device = arena.bytes.device
        rows = torch.from_numpy(rows_of_job(arena.layout, pages, slot)).pin_memory()
        self._words = arena.bytes.view(torch.int64)
        self._rows = rows.to(device, non_blocking=True)
        self._sums = torch.zeros(len(pages) + 1, 2, dtype=torch.int64, device=device)
        self._has_slot = slot is not None

    def add(self, first: int, end: int) -> None:
        """Add the current bytes of the job's digest rows [first, end), as in rows_of_job()."""
        add_rows(self._words, self._rows[:, first:end], self._sums)

    def add_all(self) -> None:
        self.add(0, self._rows.shape[1])

    def digests(self) -> tuple[list[int], int | None]:
        """Return the digests of the pages and of the slot (None without a slot). Blocks until they
        are computed. REQUIRES: each digest row was added once."""
        found = torch.empty(self._sums.shape, dtype=self._sums.dtype, pin_memory=True)
        found.copy_(self._sums, non_blocking=True)
        recorded().synchronize()
        *pages, slot = digests_of(found.numpy())
        return pages, slot if self._has_slot else None
