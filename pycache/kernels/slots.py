"""Copies inside an arena on a GPU: many slots or pages in one launch, over all layers.

A slot is one run of bytes and a page is one run a full-attention layer, so that both are copied by
one kernel, and zeroing is a kernel of the same grid. Which ids: int32 on the device, so that
nothing waits for the host; how many: `rows` on the device, since a launch may stand in a CUDA graph
captured for more. Twins: `pycache.copies`. Joins the current stream; no source may be a
destination. Ids and rows are read before the kernel ahead has ended, which may not write them.
"""

import triton
import triton.language as tl
from torch import Tensor, int32

from ..arena import Arena
from ..kernel_spec import KernelSpec
from .dependent_launch import dependent, wait_for_inputs
from .prefetch import prefetch

_WORDS = 4096
_WARPS = 8


def copy_slots(arena: Arena, pairs: Tensor, rows: Tensor) -> None:
    """Fork or snapshot: pairs [n, 2] int32 (source, destination), of which the first rows[0]
    count."""
    layout = arena.layout
    _copy(arena, pairs, rows, layout.slab_bytes, 1, layout.slot_bytes, 0)


def copy_pages(arena: Arena, pairs: Tensor, rows: Tensor) -> None:
    """KV of pages in every full-attention layer; arguments as of copy_slots."""
    layout = arena.layout
    block = layout.block_bytes
    _copy(arena, pairs, rows, block, layout.full_layers, block, layout.pages_per_slab * block)


def zero_slots(arena: Arena, slots: Tensor, rows: Tensor) -> None:
    """The state before the first token, in the first rows[0] of slots [n] int32."""
    words = arena.layout.slot_bytes // 4
    grid = (triton.cdiv(words, _WORDS), slots.shape[0])
    _zero_kernel[grid](
        arena.bytes.view(int32),
        slots,
        rows,
        arena.layout.slab_bytes // 4,
        words,
        BLOCK=_WORDS,
        num_warps=_WARPS,
    )


def _copy(
    arena: Arena,
    pairs: Tensor,
    rows: Tensor,
    id_bytes: int,
    runs: int,
    run_bytes: int,
    run_stride_bytes: int,
) -> None:
    grid = (triton.cdiv(run_bytes // 4, _WORDS), runs, pairs.shape[0])
    _copy_kernel[grid](
        arena.bytes.view(int32),
        pairs,
        rows,
        id_bytes // 4,
        run_bytes // 4,
        run_stride_bytes // 4,
        BLOCK=_WORDS,
        num_warps=_WARPS,
        **dependent(arena.bytes),
    )


@triton.jit
def _copy_kernel(
    arena,
    pairs,
    rows,
    id_words,
    run_words,
    run_stride,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(2)
    # Asked for together, so that padding is noticed without a second wait.
    count = tl.load(rows)
    source = tl.load(pairs + 2 * row).to(tl.int64) * id_words
    target = tl.load(pairs + 2 * row + 1).to(tl.int64) * id_words
    if row >= count:
        wait_for_inputs(DEPENDENT)
        return
    run = tl.program_id(1).to(tl.int64) * run_stride
    if DEPENDENT:
        start = tl.program_id(0) * BLOCK
        if start + BLOCK <= run_words:
            prefetch(arena + source + run + start, 4 * BLOCK)
    wait_for_inputs(DEPENDENT)
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = word < run_words
    words = tl.load(arena + source + run + word, mask=inside)
    tl.store(arena + target + run + word, words, mask=inside)


@triton.jit
def _zero_kernel(arena, slots, rows, id_words, run_words, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    if row >= tl.load(rows):
        return
    target = tl.load(slots + row).to(tl.int64) * id_words
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(arena + target + word, tl.zeros([BLOCK], tl.int32), mask=word < run_words)


def compile_specs() -> list[KernelSpec]:
    """Strides and runs are multiples of 64 bytes in every layout."""
    common = {"arena": "*i32", "rows": "*i32", "id_words": "i32:16", "run_words": "i32:16"}
    return [
        KernelSpec(
            name="copy_slots",
            kernel=_copy_kernel,
            signature={**common, "pairs": "*i32", "run_stride": "i32:16"},
            constants={"BLOCK": _WORDS, "DEPENDENT": True},
            num_warps=_WARPS,
        ),
        KernelSpec(
            name="zero_slots",
            kernel=_zero_kernel,
            signature={**common, "slots": "*i32"},
            constants={"BLOCK": _WORDS},
            num_warps=_WARPS,
        ),
    ]
