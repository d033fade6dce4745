"""Conversion of pages of FP8 rows to plain numbers, for readers who would convert each code too
often. Dense attention gets the keys side by side; the many tiles of a prompt get pages.

A program converts the keys or values of one page and head. Codes are read once and numbers written
once, so memory bandwidth is the only limit. Reference: `page_rows.read_pages`.
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
    """Convert the first `pages` pages of a sequence from FP8 rows. Return keys and values, each
    [pages * page_tokens, kv_heads, head_dim] of dtype. kv: uint8, dense, as in page_rows.py. table:
    int32 page ids, on the device."""
    heads, dim = kv.shape[1], _head_dim(kv)
    both = torch.empty(2, pages * PAGE_TOKENS, heads, dim, dtype=dtype, device=kv.device)
    keys, values = both.unflatten(1, (pages, PAGE_TOKENS)).transpose(2, 3)
    _turn(kv, table[None], None, keys, values)
    return both[0], both[1]


def turned_pages(kv: Tensor, page_table: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert pages of FP8 rows to pages of numbers. Return [N, kv_heads, 2, page_tokens, head_dim]
    in the order of places [N, 2] int32: sequence, and page number in the sequence. kv: uint8,
    dense, as in page_rows.py; page_table: [B, pages per row] int32."""
    size = (len(places), kv.shape[1], 2, PAGE_TOKENS, _head_dim(kv))
    pages = torch.empty(size, dtype=dtype, device=kv.device)
    _turn(kv, page_table, places, pages[:, :, 0], pages[:, :, 1])
    return pages


def _head_dim(kv: Tensor) -> int:
    return kv.shape[2] // (2 * PAGE_TOKENS) - 1


def _turn(kv: Tensor, table: Tensor, places: Tensor | None, keys: Tensor, values: Tensor) -> None:
    """Convert the pages at `places` from FP8 rows into keys and values, each [pages, kv_heads,
    page_tokens, head_dim], with equal strides."""
    pages, heads, _, dim = keys.shape
    page_stride, head_stride, token_stride, _ = keys.stride()
    _gathered_rows_kernel[(heads, pages, 2)](
        kv,
        table,
        table.stride(0),
        places,
        keys,
        values,
        KV_HEADS=heads,
        HEAD_DIM=dim,
        PAGE_TOKENS=PAGE_TOKENS,
        PAGE_STRIDE=page_stride,
        HEAD_STRIDE=head_stride,
        TOKEN_STRIDE=token_stride,
        num_warps=_WARPS,
    )


@triton.jit(do_not_specialize=["table_stride"])
def _gathered_rows_kernel(
    kv,
    table,
    table_stride,
    places,
    keys,
    values,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
):
    head = tl.program_id(0)
    number = tl.program_id(1)
    side = tl.program_id(2)
    token = tl.arange(0, PAGE_TOKENS)
    element = tl.arange(0, HEAD_DIM)
    if places is None:
        page = tl.load(table + number)
    else:
        row = tl.load(places + 2 * number).to(tl.int64) * table_stride
        page = tl.load(table + row + tl.load(places + 2 * number + 1))
    stored = page.to(tl.int64) * KV_HEADS + head
    rows = kv + stored * (2 * PAGE_TOKENS * (HEAD_DIM + 1))
    scales = rows + 2 * PAGE_TOKENS * HEAD_DIM + side * PAGE_TOKENS
    factor = row_factor(tl.load(scales + token).to(tl.int32))
    place = (side * PAGE_TOKENS + token)[:, None] * HEAD_DIM + element
    codes = tl.load(rows + place).to(tl.float8e4nv, bitcast=True)
    numbers = (codes.to(tl.float32) * factor[:, None]).to(keys.dtype.element_ty)
    target = tl.where(side == 0, keys, values)
    target += number.to(tl.int64) * PAGE_STRIDE + head * HEAD_STRIDE
    tl.store(target + token[:, None] * TOKEN_STRIDE + element, numbers)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""

    def spec(
        name: str, pointers: str, page: int, head: int, token: int, **absent: object
    ) -> KernelSpec:
        sizes = {"KV_HEADS": 4, "HEAD_DIM": 256, "PAGE_TOKENS": 64}
        strides = {"PAGE_STRIDE": page, "HEAD_STRIDE": head, "TOKEN_STRIDE": token}
        constants = sizes | strides | absent
        return KernelSpec.of(name, _gathered_rows_kernel, constants, _WARPS, i32=pointers, kv="*u8")

    return [
        spec("gathered_rows", "table", 4 * 64 * 256, 256, 4 * 256, places=None),
        spec("turned_pages", "table places", 4 * 2 * 64 * 256, 2 * 64 * 256, 256),
    ]
