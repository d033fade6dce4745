"""Keys and values in the pages of one layer, as stored: plain numbers, or FP8 rows (codes with a
scale per row).

A row is one token in one head, a key or a value. Every reader reads the stored row, so neither the
division of a prompt into forwards nor moves of pages change a result.

kv is a view of an arena. With plain numbers it is [pages, kv_heads, 2 (key, value), page_tokens,
head_dim]. With FP8 rows it is uint8 [pages, kv_heads, codes and scales]: codes [2, page_tokens,
head_dim], scales [2, page_tokens].
"""

import torch
from torch import Tensor

from tasuki.model.ops.row_room import Place, RowRoom
from tasuki.pycache.fp8_rows import decode_rows, encode_rows
from tasuki.pycache.layout import PAGE_TOKENS

_SIDES = 2
_STORED = (Place.STORED_KEYS, Place.STORED_VALUES)
_NUMBERS = (Place.KEYS, Place.VALUES)


def holds_fp8(kv: Tensor) -> bool:
    return kv.dtype is torch.uint8


def write_rows(k: Tensor, v: Tensor, kv: Tensor, places: tuple[Tensor, Tensor]) -> None:
    """Write keys and values k, v [T, kv_heads, head_dim] into pages. places: page id and offset in
    the page of each token, both [T] int64."""
    for side, rows in enumerate((k, v)):
        if not holds_fp8(kv):
            _put(kv[:, :, side], places, rows.to(kv.dtype))
            continue
        made, scales = encode_rows(rows)
        codes, of_rows = fp8_views(kv)
        _put(codes[:, :, side], places, made)
        _put(of_rows[:, :, side], places, scales)


def read_pages(
    kv: Tensor, pages: Tensor, dtype: torch.dtype, room: RowRoom
) -> tuple[Tensor, Tensor]:
    """Read whole pages as numbers. Return keys and values, each [kv_heads, page_tokens * n,
    head_dim], of pages [n]. They are valid until the next read into `room`, the memory for them."""
    if not holds_fp8(kv):
        return _keys_and_values(kv, pages, dtype, room)
    heads = kv.shape[1]
    held = _chosen_runs(kv, pages)
    codes, scales = fp8_views(held[:, None])
    numbers = decode_rows(codes[:, 0], scales[:, 0], dtype)
    k, v = (numbers[:, side].reshape(heads, -1, numbers.shape[-1]) for side in range(_SIDES))
    return k, v


def fp8_views(kv: Tensor) -> tuple[Tensor, Tensor]:
    """Return two views of pages of FP8 rows, both uint8: codes [pages, kv_heads, 2, page_tokens,
    head_dim] and scales [pages, kv_heads, 2, page_tokens]."""
    rows = _SIDES * PAGE_TOKENS
    width = kv.shape[2] // rows - 1
    codes = kv[:, :, : rows * width].unflatten(2, (_SIDES, PAGE_TOKENS, width))
    return codes, kv[:, :, rows * width :].unflatten(2, (_SIDES, PAGE_TOKENS))


def _put(side: Tensor, places: tuple[Tensor, Tensor], rows: Tensor) -> None:
    """Write rows into the keys or the values of pages, `side` [pages, kv_heads, page_tokens, ...],
    at (page ids, offsets)."""
    side.transpose(1, 2).index_put_(places, rows)


def _keys_and_values(
    kv: Tensor, pages: Tensor, dtype: torch.dtype, room: RowRoom
) -> tuple[Tensor, Tensor]:
    _, heads, sides, tokens, dim = kv.shape
    if not _is_dense(kv):
        return _beside_others(kv, pages, dtype, room)
    runs = kv.view(-1, tokens * dim)
    head = torch.arange(heads, device=kv.device)[:, None]
    chosen = ((pages * heads + head) * sides).flatten()
    count, width = len(chosen), tokens * dim

    def read(side: int) -> Tensor:
        rows = room.rows(_STORED[side], count, width, kv.dtype, kv.device)
        torch.index_select(runs, 0, chosen + side, out=rows)
        if kv.dtype != dtype:
            rows = room.rows(_NUMBERS[side], count, width, dtype, kv.device).copy_(rows)
        return rows.view(heads, -1, dim)

    return read(0), read(1)


def _is_dense(kv: Tensor) -> bool:
    """Return true if pages follow each other without a gap, so that all runs have one stride."""
    return kv.stride(0) == kv.shape[1] * kv.stride(1)


def _chosen_runs(kv: Tensor, pages: Tensor) -> Tensor:
    """Return the FP8 rows of pages [n], one head after the other: [kv_heads * n, bytes]."""
    heads = kv.shape[1]
    if not _is_dense(kv):
        return kv.index_select(0, pages).transpose(0, 1).flatten(0, 1)
    # The rows of one head in one page are neighbours, so the gather copies runs of them.
    head = torch.arange(heads, device=kv.device)[:, None]
    return kv.view(-1, kv.shape[2]).index_select(0, (pages * heads + head).flatten())


def _beside_others(
    kv: Tensor, pages: Tensor, dtype: torch.dtype, room: RowRoom
) -> tuple[Tensor, Tensor]:
    """Read pages whose blocks have other parts behind keys and values, head by head."""
    _, heads, _, tokens, dim = kv.shape
    count, width = heads * len(pages), tokens * dim

    def read(side: int) -> Tensor:
        rows = room.rows(_STORED[side], count, width, kv.dtype, kv.device)
        of_heads = rows.view(heads, len(pages), tokens, dim)
        for head in range(heads):
            torch.index_select(kv[:, head, side], 0, pages, out=of_heads[head])
        if kv.dtype != dtype:
            rows = room.rows(_NUMBERS[side], count, width, dtype, kv.device).copy_(rows)
        return rows.view(heads, -1, dim)

    return read(0), read(1)
