"""A mixture of experts for few tokens: matrix-vector products that read the chosen experts only.

Shapes: x [T, hidden] row-strided; weights as in `MoeWeights`, rows contiguous. Twin:
`TorchOperators.feed_forward`. Four launches: router logits and the shared expert's inner vector;
moe_route.py; the chosen experts' inner vectors; their down projections, weighed, summed and joined
with the gated shared expert. Each (token, choice) pair reads its expert's weights once, so the
bytes, and with them the time, grow with the tokens: right while they choose mostly different
experts. All arithmetic is float32 on the weights' values, with no tensor cores and in an order that
other tokens do not change, so this is also the exact path of a float32 model. Tokens past rows[0]
are neither read nor written.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.weights.layers import MoeWeights
from tasuki.utils.triton.dependent_launch import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .router import choose

# Rows of a matrix a program reads at a time, and their columns: 4 x 1024 bf16 are eight loads of
# 16 bytes a thread. Small programs are many, which is what hides latency at one token.
_ROWS = 4
_COLUMNS = 1024
_WARPS = 2


def moe_gemv(x: Tensor, weights: MoeWeights, chosen: int, rows: Tensor) -> Tensor:
    """Routed and shared experts of x, [T, hidden]."""
    tokens, hidden = x.shape
    down = weights.down.plain
    experts, _, inner = down.shape
    shared_inner = weights.shared.down.shape[1]
    logits = x.new_empty(tokens, experts)
    gate = x.new_empty(tokens, dtype=torch.float32)
    shared = x.new_empty(tokens, shared_inner)
    router_tiles = triton.cdiv(experts, _ROWS)
    tiles = router_tiles + 1 + triton.cdiv(shared_inner, _ROWS)
    _logits_and_shared[(tokens, tiles)](
        x,
        weights.router,
        weights.shared_gate,
        weights.shared.gate_up.plain,
        rows,
        logits,
        gate,
        shared,
        x.stride(0),
        HIDDEN=hidden,
        EXPERTS=experts,
        SHARED=shared_inner,
        ROWS=_ROWS,
        COLUMNS=_columns(hidden),
        **dependent(x),
        num_warps=_WARPS,
    )
    choice = choose(logits, chosen, rows)
    acts = x.new_empty(tokens * chosen, inner)
    _gate_up[(tokens * chosen, triton.cdiv(inner, _ROWS))](
        x,
        weights.gate_up.plain,
        choice.experts,
        rows,
        acts,
        x.stride(0),
        HIDDEN=hidden,
        INNER=inner,
        CHOSEN=chosen,
        ROWS=_ROWS,
        COLUMNS=_columns(hidden),
        **dependent(x),
        num_warps=_WARPS,
    )
    out = x.new_empty(tokens, hidden)
    _down[(tokens, triton.cdiv(hidden, _ROWS))](
        acts,
        down,
        choice.experts,
        choice.weights,
        shared,
        weights.shared.down.plain,
        gate,
        rows,
        out,
        HIDDEN=hidden,
        INNER=inner,
        SHARED=shared_inner,
        CHOSEN=chosen,
        ROWS=_ROWS,
        COLUMNS=_columns(inner),
        SHARED_COLUMNS=_columns(shared_inner),
        **dependent(x),
        num_warps=_WARPS,
    )
    return out


def _columns(width: int) -> int:
    return min(_COLUMNS, int(triton.next_power_of_2(width)))


@triton.jit
def _products(matrix, row, height, vector, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Elementwise products of rows of a contiguous matrix with a vector, summed over column blocks:
    [rows, COLUMNS] float32. A row past `height` gives zeros."""
    products = tl.zeros([row.shape[0], COLUMNS], tl.float32)
    for begin in tl.static_range(0, WIDTH, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        inside = column < WIDTH
        at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        block = tl.load(matrix + at, (row < height)[:, None] & inside[None, :], 0.0)
        factor = tl.load(vector + column, inside, 0.0).to(tl.float32)
        products += block.to(tl.float32) * factor[None, :]
    return products


@triton.jit
def _swiglu_rows(matrix, row, inner, vector, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """silu(gate rows . vector) * (up rows . vector), [rows]; up rows follow `inner` gate rows."""
    gate = tl.sum(_products(matrix, row, inner, vector, WIDTH, COLUMNS), axis=1)
    up_rows = matrix + inner.to(tl.int64) * WIDTH
    up = tl.sum(_products(up_rows, row, inner, vector, WIDTH, COLUMNS), axis=1)
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _logits_and_shared(
    x,
    router,
    shared_gate,
    shared_gate_up,
    rows,
    logits,
    gate,
    shared,
    x_stride,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(rows):
        return
    tile = tl.program_id(1)
    vector = x + token * x_stride
    router_tiles: tl.constexpr = (EXPERTS + ROWS - 1) // ROWS
    if tile < router_tiles:
        row = tile * ROWS + tl.arange(0, ROWS)
        found = tl.sum(_products(router, row, EXPERTS, vector, HIDDEN, COLUMNS), axis=1)
        tl.store(logits + token * EXPERTS + row, found, row < EXPERTS)
    elif tile == router_tiles:
        row = tl.arange(0, ROWS)
        found = tl.sum(_products(shared_gate, row, 1, vector, HIDDEN, COLUMNS), axis=1)
        tl.store(gate + token + row, tl.sigmoid(found), row < 1)
    else:
        row = (tile - router_tiles - 1) * ROWS + tl.arange(0, ROWS)
        inner = tl.full([], SHARED, tl.int32)
        act = _swiglu_rows(shared_gate_up, row, inner, vector, HIDDEN, COLUMNS)
        tl.store(shared + token * SHARED + row, act, row < SHARED)


@triton.jit
def _gate_up(
    x,
    matrices,
    experts,
    rows,
    acts,
    x_stride,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    pair = tl.program_id(0)
    token = pair // CHOSEN
    if token >= tl.load(rows):
        return
    matrix = matrices + tl.load(experts + pair).to(tl.int64) * (2 * INNER * HIDDEN)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    vector = x + token.to(tl.int64) * x_stride
    inner = tl.full([], INNER, tl.int32)
    act = _swiglu_rows(matrix, row, inner, vector, HIDDEN, COLUMNS)
    tl.store(acts + pair.to(tl.int64) * INNER + row, act, row < INNER)


@triton.jit
def _down(
    acts,
    matrices,
    experts,
    weights,
    shared,
    shared_matrix,
    gate,
    rows,
    out,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SHARED: tl.constexpr,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARED_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(rows):
        return
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    products = tl.zeros([ROWS, COLUMNS], tl.float32)
    for choice in tl.static_range(CHOSEN):
        pair = token * CHOSEN + choice
        expert = tl.load(experts + pair).to(tl.int64)
        matrix = matrices + expert * (HIDDEN * INNER)
        vector = acts + pair * INNER
        found = _products(matrix, row, HIDDEN, vector, INNER, COLUMNS)
        products += tl.load(weights + pair) * found
    vector = shared + token * SHARED
    found = _products(shared_matrix, row, HIDDEN, vector, SHARED, SHARED_COLUMNS)
    total = tl.sum(products, axis=1) + tl.load(gate + token) * tl.sum(found, axis=1)
    tl.store(out + token * HIDDEN + row, total, row < HIDDEN)


def compile_specs() -> list[KernelSpec]:
    """35B-A3B."""
    every = {"HIDDEN": 2048, "ROWS": _ROWS, "DEPENDENT": True}
    first = every | {"EXPERTS": 256, "SHARED": 512, "COLUMNS": _COLUMNS}
    second = every | {"INNER": 512, "CHOSEN": 8, "COLUMNS": _COLUMNS}
    third = second | {"SHARED": 512, "COLUMNS": 512, "SHARED_COLUMNS": 512}

    def spec(name: str, kernel: Any, constants: dict[str, int], i32: str, fp32: str) -> KernelSpec:
        return KernelSpec.of(f"moe_gemv_{name}", kernel, constants, _WARPS, i32=i32, fp32=fp32)

    return [
        spec("logits_and_shared", _logits_and_shared, first, "rows", "gate"),
        spec("gate_up", _gate_up, second, "experts rows", ""),
        spec("down", _down, third, "experts rows", "weights gate"),
    ]
