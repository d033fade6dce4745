"""A mixture of experts for few tokens: matrix-vector products reading the chosen experts only.

Shapes: x [T, hidden] row-strided; weights as in `MoeWeights`, rows contiguous. Reference:
`TorchOperators.feed_forward`.

There are four launches. The first computes router logits and the shared expert's inner vector.
router.py is the second. The third computes the chosen experts' inner vectors. The fourth computes
their down projections, weighs and sums them, and adds the gated shared expert. Each (token, choice)
pair reads its expert's weights once, so bytes and time grow with the tokens. This is right while
tokens choose mostly different experts. Each matrix is plain, FP8 or NVFP4; e4m3 and its scale are
exact (W8A16). All arithmetic is float32 on the weights' values, without tensor cores. Other tokens
do not change its order. So this is also the exact path of a float32 model. Tokens past rows[0] are
neither read nor written.
"""

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.ops.linear.e2m1 import group_products, row_factors
from tasuki.model.ops.linear.fp8_scales import (
    FP4_GROUP,
    GROUP,
    Operand,
    elements_of_row,
    row_scales,
    run_sums,
    scaled_products,
    scales_of,
)
from tasuki.model.ops.linear.gemv import Stream
from tasuki.model.weights.layers import MoeWeights
from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .router import choose

# 4 x 1024 bf16 are eight loads of 16 bytes a thread. Small programs are many, and their number
# hides latency at one token.
_PLAIN = Stream(4, 1024, 2)
# More rows, so as many bytes share the cost of an input's column. Codes: the fastest of nine at 1
# and 16 tokens of 35B-A3B on an H100. Four bits: not chosen by measurement.
_CODES = Stream(8, 2048, 4)
_FOUR_BITS = Stream(8, 2048, 4)


def moe_gemv(
    x: Tensor, weights: MoeWeights, chosen: int, rows: Tensor, held: range | None = None
) -> Tensor:
    """Return the sum of the routed experts and the shared expert for x, [T, hidden]. chosen:
    experts per token; rows [1]: number of valid tokens. held: range of experts present in the
    weights; None: all."""
    tokens, hidden = x.shape
    gate_up, down = Operand.of(weights.gate_up), Operand.of(weights.down)
    shared_up, shared_down = Operand.of(weights.shared.gate_up), Operand.of(weights.shared.down)
    first, second, third = (_stream(matrix) for matrix in (shared_up, gate_up, down))
    experts, inner = weights.router.shape[0], weights.down.shape[-1]
    part = None if held is None else len(held)
    shared_inner = weights.shared.down.shape[1]
    logits = x.new_empty(tokens, experts)
    gate = x.new_empty(tokens, dtype=torch.float32)
    shared = x.new_empty(tokens, shared_inner)
    router_tiles = triton.cdiv(experts, first.rows)
    tiles = router_tiles + 1 + triton.cdiv(shared_inner, first.rows)
    _logits_and_shared[(tokens, tiles)](
        x,
        weights.router,
        weights.shared_gate,
        shared_up.values,
        shared_up.scales,
        shared_up.factors,
        rows,
        logits,
        gate,
        shared,
        x.stride(0),
        HIDDEN=hidden,
        EXPERTS=experts,
        SHARED=shared_inner,
        ROWS=first.rows,
        COLUMNS=_columns(first, hidden, shared_up),
        SCALE_ROWS=shared_up.scale_rows,
        SCALE_COLUMNS=shared_up.scale_columns,
        **dependent(x),
        num_warps=first.warps,
    )
    choice = choose(logits, chosen, rows, held)
    acts = x.new_empty(tokens * chosen, inner)
    _gate_up[(tokens * chosen, triton.cdiv(inner, second.rows))](
        x,
        gate_up.values,
        gate_up.scales,
        gate_up.factors,
        choice.experts,
        rows,
        acts,
        x.stride(0),
        HIDDEN=hidden,
        INNER=inner,
        CHOSEN=chosen,
        HELD=part,
        ROWS=second.rows,
        COLUMNS=_columns(second, hidden, gate_up),
        SCALE_ROWS=gate_up.scale_rows,
        SCALE_COLUMNS=gate_up.scale_columns,
        **dependent(x),
        num_warps=second.warps,
    )
    out = x.new_empty(tokens, hidden)
    _down[(tokens, triton.cdiv(hidden, third.rows))](
        acts,
        down.values,
        down.scales,
        down.factors,
        choice.experts,
        choice.weights,
        shared,
        shared_down.values,
        shared_down.scales,
        shared_down.factors,
        gate,
        rows,
        out,
        HIDDEN=hidden,
        INNER=inner,
        SHARED=shared_inner,
        CHOSEN=chosen,
        HELD=part,
        ROWS=third.rows,
        COLUMNS=_columns(third, inner, down),
        SHARED_COLUMNS=_columns(third, shared_inner, shared_down),
        SCALE_ROWS=down.scale_rows,
        SCALE_COLUMNS=down.scale_columns,
        SHARED_SCALE_ROWS=shared_down.scale_rows,
        SHARED_SCALE_COLUMNS=shared_down.scale_columns,
        **dependent(x),
        num_warps=third.warps,
    )
    return out


def _columns(stream: Stream, width: int, weights: Operand) -> int:
    return max(min(stream.block, int(triton.next_power_of_2(width))), weights.least_columns)


def _stream(weights: Operand) -> Stream:
    if weights.factors is not None:
        return _FOUR_BITS
    return _PLAIN if weights.scales is None else _CODES


@triton.jit
def _products(
    matrix,
    row,
    height,
    vector,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    scales=None,
    factors=None,
    first=None,
    all_rows=None,
    SCALE_ROWS: tl.constexpr = 1,
    SCALE_COLUMNS: tl.constexpr = 1,
):
    """Multiply rows of a contiguous matrix by a vector, element by element, and sum over column
    blocks and runs. Return [rows, COLUMNS / run] float32. A row past `height` gives zeros. scales:
    scales of FP8 numbers, in a matrix of `all_rows` rows; row[0] is row number `first` there."""
    ROWS: tl.constexpr = row.shape[0]
    # A thread sums its part of a row before keeping it.
    RUN: tl.constexpr = 1 if scales is None else 32 if SCALE_COLUMNS == 16 else 16
    products = tl.zeros([ROWS, COLUMNS // RUN], tl.float32)
    if factors is not None:
        WIDE: tl.constexpr = (WIDTH + 127) // 128 * 64
        for begin in tl.static_range(0, WIDE, COLUMNS // 2):
            byte = begin + tl.arange(0, COLUMNS // 2)
            at = row.to(tl.int64)[:, None] * WIDE + byte[None, :]
            codes = tl.load(matrix + at, (row < height)[:, None] & (byte < WIDE)[None, :], 0)
            column = byte // 64 * 128 + byte % 64
            low = tl.load(vector + column, column < WIDTH, 0.0).to(tl.float32)
            high = tl.load(vector + column + 64, column + 64 < WIDTH, 0.0).to(tl.float32)
            products += group_products(codes, scales, low, high, first, all_rows, begin, ROWS, WIDE)
        of_row = tl.minimum(first + tl.arange(0, ROWS), all_rows - 1)
        multiplier, divisor = row_factors(factors, of_row, all_rows)
        products = products * multiplier[:, None] / divisor[:, None]
    else:
        for begin in tl.static_range(0, WIDTH, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)
            inside = column < WIDTH
            at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
            block = tl.load(matrix + at, (row < height)[:, None] & inside[None, :], 0.0)
            factor = tl.load(vector + column, inside, 0.0).to(tl.float32)
            if scales is None:
                products += block.to(tl.float32) * factor[None, :]
            else:
                found = scaled_products(
                    block, factor, scales, first, all_rows, begin, ROWS, COLUMNS, WIDTH, SCALE_ROWS,
                    SCALE_COLUMNS,
                )  # fmt: skip
                products += run_sums(found, 16)
        if scales is not None:  # noqa: SIM102 (decided when the kernel is compiled)
            if SCALE_COLUMNS >= WIDTH:
                products *= row_scales(scales, first, all_rows, ROWS)[:, None]
    return products


@triton.jit
def _swiglu_rows(
    matrix,
    first,
    inner,
    vector,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    scales,
    factors,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
):
    """Return silu(gate rows . vector) * (up rows . vector) for ROWS inner elements, [ROWS]. The up
    rows of the matrix follow its `inner` gate rows."""
    row = first + tl.arange(0, ROWS)
    gate = tl.sum(
        _products(
            matrix, row, inner, vector, WIDTH, COLUMNS,
            scales, factors, first, 2 * inner, SCALE_ROWS, SCALE_COLUMNS,
        ),
        axis=1,
    )  # fmt: skip
    up_rows = matrix + inner.to(tl.int64) * elements_of_row(WIDTH, SCALE_COLUMNS)
    up = tl.sum(
        _products(
            up_rows, row, inner, vector, WIDTH, COLUMNS,
            scales, factors, inner + first, 2 * inner, SCALE_ROWS, SCALE_COLUMNS,
        ),
        axis=1,
    )  # fmt: skip
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _logits_and_shared(
    x,
    router,
    shared_gate,
    shared_gate_up,
    shared_scales,
    shared_factors,
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
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
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
        first = (tile - router_tiles - 1) * ROWS
        row = first + tl.arange(0, ROWS)
        inner = tl.full([], SHARED, tl.int32)
        act = _swiglu_rows(
            shared_gate_up, first, inner, vector, ROWS, HIDDEN, COLUMNS,
            shared_scales, shared_factors, SCALE_ROWS, SCALE_COLUMNS,
        )  # fmt: skip
        tl.store(shared + token * SHARED + row, act, row < SHARED)


@triton.jit
def _gate_up(
    x,
    matrices,
    scales,
    factors,
    experts,
    rows,
    acts,
    x_stride,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    CHOSEN: tl.constexpr,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    pair = tl.program_id(0)
    token = pair // CHOSEN
    if token >= tl.load(rows):
        return
    expert = tl.load(experts + pair).to(tl.int64)
    if HELD is not None:  # noqa: SIM102 (decided when the kernel is compiled)
        if expert >= HELD:
            return
    matrix = matrices + expert * (2 * INNER * elements_of_row(HIDDEN, SCALE_COLUMNS))
    first = tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    vector = x + token.to(tl.int64) * x_stride
    inner = tl.full([], INNER, tl.int32)
    if scales is not None:
        scales = scales_of(scales, expert, 2 * INNER, HIDDEN, SCALE_ROWS, SCALE_COLUMNS)
    if factors is not None:
        factors += expert * (2 * 2 * INNER)
    act = _swiglu_rows(
        matrix, first, inner, vector, ROWS, HIDDEN, COLUMNS, scales, factors, SCALE_ROWS,
        SCALE_COLUMNS,
    )  # fmt: skip
    tl.store(acts + pair.to(tl.int64) * INNER + row, act, row < INNER)


@triton.jit
def _of_pair(
    acts,
    matrices,
    scales,
    factors,
    expert,
    weights,
    pair,
    row,
    first,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
):
    """Multiply rows of one expert's down matrix by a pair's inner vector. Return the products times
    the pair's routing weight."""
    matrix = matrices + expert * (HIDDEN * elements_of_row(INNER, SCALE_COLUMNS))
    of_expert = scales
    if scales is not None:
        of_expert = scales_of(scales, expert, HIDDEN, INNER, SCALE_ROWS, SCALE_COLUMNS)
    expert_factors = factors
    if factors is not None:
        expert_factors = factors + expert * (2 * HIDDEN)
    found = _products(
        matrix, row, HIDDEN, acts + pair * INNER, INNER, COLUMNS,
        of_expert, expert_factors, first, HIDDEN, SCALE_ROWS, SCALE_COLUMNS,
    )  # fmt: skip
    return tl.load(weights + pair) * found


@triton.jit
def _down(
    acts,
    matrices,
    scales,
    factors,
    experts,
    weights,
    shared,
    shared_matrix,
    shared_scales,
    shared_factors,
    gate,
    rows,
    out,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SHARED: tl.constexpr,
    CHOSEN: tl.constexpr,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARED_COLUMNS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    SHARED_SCALE_ROWS: tl.constexpr,
    SHARED_SCALE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(rows):
        return
    first = tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    RUN: tl.constexpr = 1 if scales is None else 32 if SCALE_COLUMNS == 16 else 16
    products = tl.zeros([ROWS, COLUMNS // RUN], tl.float32)
    for choice in tl.static_range(CHOSEN):
        pair = token * CHOSEN + choice
        expert = tl.load(experts + pair).to(tl.int64)
        if HELD is None:
            products += _of_pair(
                acts, matrices, scales, factors, expert, weights, pair, row, first, HIDDEN, INNER,
                COLUMNS, SCALE_ROWS, SCALE_COLUMNS,
            )  # fmt: skip
        else:
            # Experts on other ranks have computed nothing here.
            if expert < HELD:
                products += _of_pair(
                    acts, matrices, scales, factors, expert, weights, pair, row, first, HIDDEN,
                    INNER, COLUMNS, SCALE_ROWS, SCALE_COLUMNS,
                )  # fmt: skip
    vector = shared + token * SHARED
    found = _products(
        shared_matrix, row, HIDDEN, vector, SHARED, SHARED_COLUMNS,
        shared_scales, shared_factors, first, HIDDEN, SHARED_SCALE_ROWS, SHARED_SCALE_COLUMNS,
    )  # fmt: skip
    total = tl.sum(products, axis=1) + tl.load(gate + token) * tl.sum(found, axis=1)
    tl.store(out + token * HIDDEN + row, total, row < HIDDEN)


_STORED = {"bf16": (_PLAIN, None), "fp8": (_CODES, GROUP), "nvfp4": (_FOUR_BITS, FP4_GROUP)}


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the model 35B-A3B, plain, in FP8
    blocks and in NVFP4."""
    return [spec for stored in _STORED for spec in _specs(stored)]


def _specs(stored: str) -> list[KernelSpec]:
    stream, group = _STORED[stored]
    every = {"HIDDEN": 2048, "ROWS": stream.rows, "DEPENDENT": True}
    first = every | {"EXPERTS": 256, "SHARED": 512, "COLUMNS": stream.block}
    second = every | {"INNER": 512, "CHOSEN": 8, "HELD": None, "COLUMNS": stream.block}
    third = second | {"SHARED": 512, "COLUMNS": 512, "SHARED_COLUMNS": 512}
    kinds = {
        "bf16": {},
        "fp8": {"values": "*fp8e4nv", "scales": "*fp32"},
        "nvfp4": {"values": "*u8", "scales": "*fp8e4nv", "factors": "*fp32"},
    }[stored]
    names = {
        "values": ("matrices", "shared_matrix", "shared_gate_up"),
        "scales": ("scales", "shared_scales"),
        "factors": ("factors", "shared_factors"),
    }

    def spec(name: str, kernel: Any, constants: dict[str, Any], i32: str, fp32: str) -> KernelSpec:
        arguments = kernel.arg_names
        sizes = {
            name: (group or constants[width]) if "COLUMNS" in name else group if fp8_rows else 1
            for name, width in (
                ("SCALE_ROWS", "HIDDEN"),
                ("SCALE_COLUMNS", "INNER" if name == "down" else "HIDDEN"),
                ("SHARED_SCALE_ROWS", "HIDDEN"),
                ("SHARED_SCALE_COLUMNS", "SHARED"),
            )
            if name in arguments
        }
        types: dict[str, str] = {}
        absent: dict[str, None] = {}
        for part, given in names.items():
            here = [name for name in given if name in arguments]
            if part in kinds:
                types |= dict.fromkeys(here, kinds[part])
            elif part != "values":
                absent |= dict.fromkeys(here)
        made = KernelSpec.of(
            f"moe_gemv_{name}{'' if stored == 'bf16' else f'_{stored}'}",
            kernel,
            constants | sizes | absent,
            stream.warps,
            i32=i32,
            fp32=fp32,
        )
        return replace(made, signature=made.signature | types)

    fp8_rows = stored == "fp8"
    return [
        spec("logits_and_shared", _logits_and_shared, first, "rows", "gate"),
        spec("gate_up", _gate_up, second, "experts rows", ""),
        spec("down", _down, third, "experts rows", "weights gate"),
    ]
