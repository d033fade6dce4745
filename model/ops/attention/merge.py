"""Joining of partial attention results (over parts of a context) by their weights, with the output
gate.

Two kernels, one per way of splitting a context: even shares of a whole batch's pages (decode), or
equally many splits per token (short prefill). The partial results are normalised. Their weights are
log2 of the sum of exponentials. Reference: a softmax over the parts' weights, then `output *
sigmoid(gate)`.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec


@dataclass(frozen=True)
class _Block:
    """Work of one program: `step` partial results together, `slice` elements of a head."""

    step: int
    slice: int
    warps: int

    def constants(self, head_dim: int) -> dict[str, int]:
        return {"SLICE": min(head_dim, self.slice), "STEP": self.step}


_FEW_ROWS = _Block(64, 32, 2)
_MANY_ROWS = _Block(8, 64, 1)
_MANY = 16
"""Fewest rows of a batch for _MANY_ROWS. With so many rows, each row is in few shares, and the
kernel needs a fifth of the instructions."""


@dataclass(frozen=True)
class GateSource:
    """The output gates of attention, as part of in_proj's result. With head dimension D, the gate
    of head h of row r is gate[r, 2 h D: 2 h D + D]: `gate` is `projected` from its first gate on.
    stride: elements from row to row."""

    gate: Tensor
    stride: int

    @staticmethod
    def of(projected: Tensor, head_dim: int) -> "GateSource":
        return GateSource(projected[:, head_dim:], projected.stride(0))


def merge_shares(
    outputs: Tensor,
    weights: Tensor,
    source: GateSource,
    context_lens: Tensor,
    rows: Tensor,
    shares: int,
    like: Tensor,
    page_tokens: int,
    tokens: int = 1,
) -> Tensor:
    """Join decode's partial results and apply the gates. Return [B, heads * dim] in the dtype of
    `like` [B, heads, dim]; rows from rows[0] on are unwritten.

    outputs [shares + B, heads, dim] and weights [shares + B, heads] float32, as `attention_decode`
    writes them. tokens: number of tokens per row, each with a part of `heads`; row r's gates are
    rows [r * tokens, r * tokens + tokens) of the source.
    """
    batch, heads, dim = like.shape
    merged = like.new_empty(batch, heads * dim)
    block = _MANY_ROWS if batch >= _MANY else _FEW_ROWS
    sizes = block.constants(dim)
    _shares_kernel[(heads * (dim // sizes["SLICE"]), batch)](
        outputs,
        weights,
        source.gate,
        source.stride,
        context_lens,
        rows,
        shares,
        merged,
        batch,
        TOKENS=tokens,
        HEADS=heads,
        HEAD_DIM=dim,
        PAGE_TOKENS=page_tokens,
        BATCH_BLOCK=triton.next_power_of_2(batch),
        **sizes,
        num_warps=block.warps,
        **dependent(like),
    )
    return merged


def merge_splits(outputs: Tensor, weights: Tensor, source: GateSource, like: Tensor) -> Tensor:
    """Join the results of all splits and apply the gates. Return [T, heads * dim] in the dtype of
    `like` [T, heads, dim].

    outputs [splits, T, heads, dim] and weights [splits, T, heads] float32; a weight of -inf marks a
    split without keys.
    """
    tokens, heads, dim = like.shape
    merged = like.new_empty(tokens, heads * dim)
    sizes = _FEW_ROWS.constants(dim)
    _splits_kernel[(heads * (dim // sizes["SLICE"]), tokens)](
        outputs,
        weights,
        source.gate,
        source.stride,
        outputs.shape[0],
        merged,
        tokens,
        HEADS=heads,
        HEAD_DIM=dim,
        **sizes,
        num_warps=_FEW_ROWS.warps,
        **dependent(like),
    )
    return merged


@triton.jit
def share_of_program(
    context_lens, rows, batch, programs, PAGE_TOKENS: tl.constexpr, BATCH_BLOCK: tl.constexpr
):
    """Return the running sums of the sequences' page counts, [BATCH_BLOCK], and the number of pages
    for each program."""
    every = tl.arange(0, BATCH_BLOCK)
    live = every < tl.minimum(batch, tl.load(rows, cache_modifier=".cg"))
    lengths = tl.load(context_lens + every, mask=live, other=0, cache_modifier=".cg")
    ends = tl.cumsum((lengths + PAGE_TOKENS - 1) // PAGE_TOKENS, axis=0)
    return ends, (tl.max(ends, axis=0) + programs - 1) // programs


@triton.jit
def joined_parts(
    outputs,
    weights,
    first,
    last,
    step,
    element,
    HEAD_DIM: tl.constexpr,
    SLICE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Return head elements [SLICE] of the partial results first, ..., last - 1, joined by their
    weights. Successive results are `step` rows apart."""
    largest = tl.full([STEP], -1.0e30, tl.float32)
    total = tl.zeros([STEP], tl.float32)
    joined = tl.zeros([STEP, SLICE], tl.float32)
    for start in range(first, last, STEP):
        part = start + tl.arange(0, STEP)
        row = part.to(tl.int64) * step
        weight = tl.load(weights + row, mask=part < last, other=float("-inf"))
        place = outputs + row[:, None] * HEAD_DIM + element
        output = tl.load(place, mask=(part < last)[:, None], other=0.0)
        higher = tl.maximum(largest, weight)
        correction = tl.exp2(largest - higher)
        share = tl.exp2(weight - higher)
        total = total * correction + share
        joined = joined * correction[:, None] + output * share[:, None]
        largest = higher
    scale = tl.exp2(largest - tl.max(largest, axis=0))
    return tl.sum(joined * scale[:, None], axis=0) / tl.sum(total * scale, axis=0)


@triton.jit
def opening_of(gate, gate_stride, row, head, element, HEAD_DIM: tl.constexpr):
    """Return the output gate's factors of a row's head elements, sigmoid(gate), float32."""
    start = gate + row * gate_stride + head * (2 * HEAD_DIM)
    return tl.sigmoid(tl.load(start + element, cache_modifier=".cg").to(tl.float32))


@triton.jit(do_not_specialize=["shares", "batch"])
def _shares_kernel(
    outputs,
    weights,
    gate,
    gate_stride,
    context_lens,
    rows,
    shares,
    merged,
    batch,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
    STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    slices: tl.constexpr = HEAD_DIM // SLICE
    head = tl.program_id(0) // slices
    element = tl.program_id(0) % slices * SLICE + tl.arange(0, SLICE)
    sequence = tl.program_id(1)
    row = sequence.to(tl.int64)
    # All of these values are older than the previous kernel.
    ends, share = share_of_program(context_lens, rows, batch, shares, PAGE_TOKENS, BATCH_BLOCK)
    every = tl.arange(0, BATCH_BLOCK)
    begin = tl.sum(tl.where(every == sequence - 1, ends, 0), axis=0)
    end = tl.sum(tl.where(every == sequence, ends, 0), axis=0)
    at, part = row, head
    if TOKENS > 1:
        each: tl.constexpr = HEADS // TOKENS
        at, part = row * TOKENS + head // each, head % each
    opening = opening_of(gate, gate_stride, at, part, element, HEAD_DIM)
    wait_for_inputs(DEPENDENT)
    if sequence >= tl.load(rows):
        return
    joined = joined_parts(
        outputs + head * HEAD_DIM,
        weights + head,
        begin // share + sequence,
        (end - 1) // share + sequence + 1,
        HEADS,
        element,
        HEAD_DIM,
        SLICE,
        STEP,
    )
    target = merged + (row * HEADS + head) * HEAD_DIM + element
    tl.store(target, (joined * opening).to(merged.dtype.element_ty))


@triton.jit(do_not_specialize=["splits", "tokens"])
def _splits_kernel(
    outputs,
    weights,
    gate,
    gate_stride,
    splits,
    merged,
    tokens,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SLICE: tl.constexpr,
    STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    slices: tl.constexpr = HEAD_DIM // SLICE
    head = tl.program_id(0) // slices
    element = tl.program_id(0) % slices * SLICE + tl.arange(0, SLICE)
    token = tl.program_id(1).to(tl.int64)
    row = token * HEADS + head
    joined = joined_parts(
        outputs + row * HEAD_DIM,
        weights + row,
        0,
        splits,
        tokens * HEADS,
        element,
        HEAD_DIM,
        SLICE,
        STEP,
    )
    opening = opening_of(gate, gate_stride, token, head, element, HEAD_DIM)
    target = merged + row * HEAD_DIM + element
    tl.store(target, (joined * opening).to(merged.dtype.element_ty))


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""
    parts, rows = "outputs weights", "context_lens rows"
    heads = {"HEADS": 16, "HEAD_DIM": 256, "DEPENDENT": True}
    batch = heads | {"TOKENS": 1, "PAGE_TOKENS": 64}

    def shares(name: str, size: int, block: _Block) -> KernelSpec:
        constants = batch | {"BATCH_BLOCK": size} | block.constants(256)
        return KernelSpec.of(name, _shares_kernel, constants, block.warps, fp32=parts, i32=rows)

    splits = heads | _FEW_ROWS.constants(256)
    return [
        shares("attention_merge_shares", 8, _FEW_ROWS),
        shares("attention_merge_shares_of_many_rows", 32, _MANY_ROWS),
        KernelSpec.of(
            "attention_merge_splits", _splits_kernel, splits, _FEW_ROWS.warps, fp32=parts
        ),
    ]
