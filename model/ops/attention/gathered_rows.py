"""Keys and values of FP8 rows side by side, as numbers: what dense attention takes.

A program turns what one page has of one head, keys or values: codes are read once and numbers
written once, so the floor is memory bandwidth. Twin: `page_rows.read_pages`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.triton.fp8_rows import row_factor
from tasuki.utils.triton.kernel_spec import KernelSpec

_WARPS = 4


def gathered_rows(
    kv: Tensor, table: Tensor, pages: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys and values [pages * page_tokens, kv_heads, head_dim] of the table's first pages; kv
    uint8, dense, as page_rows.py has it; table int32, on the device."""
    heads, size = kv.shape[1:]
    dim = size // (2 * PAGE_TOKENS) - 1
    keys, values = (
        torch.empty(pages * PAGE_TOKENS, heads, dim, dtype=dtype, device=kv.device)
        for _ in range(2)
    )
    _kernel[(heads, pages, 2)](
        kv,
        table,
        keys,
        values,
        KV_HEADS=heads,
        HEAD_DIM=dim,
        PAGE_TOKENS=PAGE_TOKENS,
        num_warps=_WARPS,
    )
    return keys, values


@triton.jit
def _kernel(
    kv,
    table,
    keys,
    values,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
):
    head = tl.program_id(0)
    page = tl.program_id(1)
    side = tl.program_id(2)
    token = tl.arange(0, PAGE_TOKENS)
    element = tl.arange(0, HEAD_DIM)
    stored = tl.load(table + page).to(tl.int64) * KV_HEADS + head
    rows = kv + stored * (2 * PAGE_TOKENS * (HEAD_DIM + 1))
    scales = rows + 2 * PAGE_TOKENS * HEAD_DIM + side * PAGE_TOKENS
    factor = row_factor(tl.load(scales + token).to(tl.int32))
    place = (side * PAGE_TOKENS + token)[:, None] * HEAD_DIM + element
    codes = tl.load(rows + place).to(tl.float8e4nv, bitcast=True)
    numbers = (codes.to(tl.float32) * factor[:, None]).to(keys.dtype.element_ty)
    row = (page * PAGE_TOKENS + token).to(tl.int64) * KV_HEADS + head
    target = tl.where(side == 0, keys, values)
    tl.store(target + row[:, None] * HEAD_DIM + element, numbers)


def compile_specs() -> list[KernelSpec]:
    """In the shape of the 9B model."""
    sizes = {"KV_HEADS": 4, "HEAD_DIM": 256, "PAGE_TOKENS": 64}
    return [KernelSpec.of("gathered_rows", _kernel, sizes, _WARPS, i32="table", kv="*u8")]
