"""Joining of a row's partial attention results in the order of its spans, with the output gate.

One shape of blocks for every batch, so that a row's bits do not depend on others. Reference: a
softmax over the spans' weights, then `output * sigmoid(gate)`.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from ..merge import GateSource, joined_parts, opening_of
from .rule import SpanRule

_STEP, _SLICE, _WARPS = 32, 32, 1


def merge_spans(
    outputs: Tensor,
    weights: Tensor,
    source: GateSource,
    context_lens: Tensor,
    rows: Tensor,
    rule: SpanRule,
    like: Tensor,
    tokens: int,
) -> Tensor:
    """Join partial results and apply the gates. Return [B, heads * dim] in the dtype of `like` [B,
    heads, dim]; rows from rows[0] on are unwritten.

    outputs [at least B, most spans, heads, dim] and weights [at least B, most spans, heads]
    float32, as `attend_spans` writes them. context_lens: keys of each row, [B] int32. tokens:
    number of tokens per row, each with a part of `heads`; row r's gates are rows [r * tokens, r *
    tokens + tokens) of the source.
    """
    batch, heads, dim = like.shape
    merged = like.new_empty(batch, heads * dim)
    size = min(dim, _SLICE)
    _spans_kernel[(heads * (dim // size), batch)](
        outputs,
        weights,
        source.gate,
        source.stride,
        context_lens,
        rows,
        merged,
        rule.least_pages,
        rule.most_spans,
        TOKENS=tokens,
        HEADS=heads,
        HEAD_DIM=dim,
        PAGE_TOKENS=PAGE_TOKENS,
        SLICE=size,
        STEP=_STEP,
        num_warps=_WARPS,
        **dependent(like),
    )
    return merged


@triton.jit
def span_pages(length, least_pages, most_spans, PAGE_TOKENS: tl.constexpr):
    """Return the pages of rows with `length` keys, and those of a span, as `SpanRule.pages`."""
    pages = (length + PAGE_TOKENS - 1) // PAGE_TOKENS
    return pages, tl.maximum((pages + most_spans - 1) // most_spans, least_pages)


@triton.jit(do_not_specialize=["least_pages", "most_spans"])
def _spans_kernel(
    outputs,
    weights,
    gate,
    gate_stride,
    context_lens,
    rows,
    merged,
    least_pages,
    most_spans,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    SLICE: tl.constexpr,
    STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    slices: tl.constexpr = HEAD_DIM // SLICE
    each: tl.constexpr = HEADS // TOKENS
    head = tl.program_id(0) // slices
    element = tl.program_id(0) % slices * SLICE + tl.arange(0, SLICE)
    row = tl.program_id(1).to(tl.int64)
    # All of these values are older than the previous kernel.
    exists = row < tl.load(rows, cache_modifier=".cg")
    length = tl.load(context_lens + row, cache_modifier=".cg")
    pages, size = span_pages(length, least_pages, most_spans, PAGE_TOKENS)
    opening = opening_of(
        gate, gate_stride, row * TOKENS + head // each, head % each, element, HEAD_DIM
    )
    wait_for_inputs(DEPENDENT)
    if exists:
        first = row * (most_spans * HEADS)
        joined = joined_parts(
            outputs + (first + head) * HEAD_DIM,
            weights + first + head,
            0,
            (pages + size - 1) // size,
            HEADS,
            element,
            HEAD_DIM,
            SLICE,
            STEP,
        )
        target = merged + (row * HEADS + head) * HEAD_DIM + element
        tl.store(target, (joined * opening).to(merged.dtype.element_ty))


def compile_specs() -> list[KernelSpec]:
    """Return the spec to compile the kernel ahead of time, in the shapes of the 9B model."""
    sizes = {"TOKENS": 1, "HEADS": 16, "HEAD_DIM": 256, "PAGE_TOKENS": 64, "DEPENDENT": True}
    constants = sizes | {"SLICE": _SLICE, "STEP": _STEP}
    return [
        KernelSpec.of(
            "attention_merge_spans",
            _spans_kernel,
            constants,
            _WARPS,
            fp32="outputs weights",
            i32="context_lens rows",
        )
    ]
