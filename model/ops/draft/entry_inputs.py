"""Inputs of the draft layer for every token of a forward: its normed embedding, then the normed
final hidden state of the token before it.

A sequence's first row takes this state from its read slot, any other row from the row before. A
decode step has first rows only, so these inputs exist before any layer has run. Reference:
`states_before` of reference.py and two `norm.reference.rms_norm`.

A program owns one half of one token. It is launched after a fork of streams, so it depends on no
launch before it in the stream.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.kernel_spec import KernelSpec

_ELEMENTS = 32
"""Number of elements for each thread."""


def entry_inputs(
    tokens: Tensor,
    hidden: Tensor | None,
    embedding: Tensor,
    carry: Tensor,
    owners: Tensor,
    read_slots: Tensor,
    rows: Tensor,
    norms: tuple[Tensor, Tensor],
    eps: float,
) -> Tensor:
    """Return the draft layer's inputs [T, 2 * width] in embedding's dtype: normed embedding, then
    normed hidden state. They are undefined for tokens from rows[0] on.

    tokens: [T]. hidden: [T, width] contiguous, final hidden states of this forward; None if every
    token is its sequence's first. embedding: [vocab, width] contiguous. carry: [slots, width], rows
    of unit stride. carry has the state before a sequence's first token. owners: [T], each token's
    sequence index, ascending. read_slots: [B]. rows: [1]. norms: two norm weights [width] float32
    as 1 + w, of the embedding and of the hidden state. Integers are int32 or int64.
    """
    width = embedding.shape[1]
    joined = embedding.new_empty(len(tokens), 2 * width)
    _draft_entry_inputs_kernel[(len(tokens), 2)](
        tokens,
        hidden,
        embedding,
        carry,
        carry.stride(0),
        owners,
        read_slots,
        rows,
        *norms,
        joined,
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=_warps(width),
    )
    return joined


def _warps(width: int) -> int:
    warps: int = triton.next_power_of_2(width) // (32 * _ELEMENTS)
    return min(max(warps, 1), 16)


@triton.jit
def _draft_entry_inputs_kernel(
    tokens,
    hidden,
    embedding,
    carry,
    carry_stride,
    owners,
    read_slots,
    rows,
    embedding_norm,
    hidden_norm,
    joined,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    live = token < tl.load(rows)
    inside = live & (column < WIDTH)
    if half == 0:
        scale = tl.load(embedding_norm + column, mask=column < WIDTH, other=0.0)
        number = tl.load(tokens + token, mask=live, other=0).to(tl.int64)
        values = tl.load(embedding + number * WIDTH + column, mask=inside, other=0.0)
    else:
        scale = tl.load(hidden_norm + column, mask=column < WIDTH, other=0.0)
        owner = tl.load(owners + token, mask=live, other=0)
        before = tl.load(owners + token - 1, mask=live & (token > 0), other=0)
        first = (token == 0) | (owner != before)
        slot = tl.load(read_slots + owner, mask=live & first, other=0).to(tl.int64)
        values = tl.load(carry + slot * carry_stride + column, mask=inside & first, other=0.0)
        if hidden is not None:
            row_before = hidden + (token - 1) * WIDTH
            later = tl.load(row_before + column, mask=inside & ~first, other=0.0)
            values = tl.where(first, values, later)
    values = values.to(tl.float32)
    root = tl.rsqrt(tl.sum(values * values, axis=0) / WIDTH + eps)
    result = (values * root * scale).to(joined.dtype.element_ty)
    tl.store(joined + (2 * token + half) * WIDTH + column, result, mask=inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""
    sizes = {"WIDTH": 4096, "BLOCK": 4096}

    def spec(name: str, constants: dict[str, object], integers: str) -> KernelSpec:
        return KernelSpec.of(
            name,
            _draft_entry_inputs_kernel,
            sizes | constants,
            _warps(4096),
            fp32="embedding_norm hidden_norm",
            i32="owners rows",
            tokens=integers,
            read_slots=integers,
        )

    return [
        spec("draft_entry_inputs", {}, "*i64"),
        spec("draft_entry_inputs_step", {"hidden": None}, "*i32"),
    ]
