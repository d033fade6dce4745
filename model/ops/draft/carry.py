"""Storing of final hidden states for the draft layer: those of a decode step's rows, normed, go
into the slots written by the step.

A program owns one row. Reference: `norm.reference.rms_norm` of branch + residual, then `carry_over`
of reference.py. It is launched after a join of streams, so it depends on no launch before it in the
stream.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.kernel_spec import KernelSpec

_ELEMENTS = 8
"""Number of elements for each thread: one load of 16 bytes from each operand."""


def carry_normed(
    branch: Tensor,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    carry: Tensor,
    write_slots: Tensor,
    rows: Tensor,
) -> None:
    """Write each row's normed final hidden state into the slot written by the step.

    branch, residual: [B, width], contiguous and unchanged. norm: [width] float32, 1 + w. carry:
    [slots, width], rows of unit stride. write_slots: [B] int32. rows: [1] int32, number of valid
    rows; further rows write nothing.
    """
    batch, width = residual.shape
    _draft_carry_kernel[(batch,)](
        branch,
        residual,
        norm,
        carry,
        carry.stride(0),
        write_slots,
        rows,
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=_warps(width),
    )


def carry_folded(
    hidden: Tensor, places: Tensor, counts: Tensor, carry: Tensor, write_slots: Tensor
) -> None:
    """Write the hidden state of each row's last accepted token into its slot of carry.

    Row r accepted the first counts[r] tokens of hidden[places[r]]. The state of the last of them
    goes into slot write_slots[r]. Nothing is written if counts[r] is 0. hidden: [places, tokens,
    width], contiguous. places, counts, write_slots: [B] int32. Reference: an index in PyTorch.
    """
    width = hidden.shape[2]
    _folded_kernel[(len(counts),)](
        hidden,
        hidden.shape[1],
        places,
        counts,
        carry,
        carry.stride(0),
        write_slots,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=_warps(width),
    )


def _warps(width: int) -> int:
    warps: int = triton.next_power_of_2(width) // (32 * _ELEMENTS)
    return min(max(warps, 1), 16)


@triton.jit
def _draft_carry_kernel(
    branch,
    residual,
    norm,
    carry,
    carry_stride,
    write_slots,
    rows,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = row < tl.load(rows)
    inside = live & (column < WIDTH)
    slot = tl.load(write_slots + row, mask=live, other=0).to(tl.int64)
    scale = tl.load(norm + column, mask=column < WIDTH, other=0.0)
    value = tl.load(branch + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    before = tl.load(residual + row * WIDTH + column, mask=inside, other=0.0)
    # The residual stream is rounded in the same way.
    total = (value + before.to(tl.float32)).to(residual.dtype.element_ty).to(tl.float32)
    root = tl.rsqrt(tl.sum(total * total, axis=0) / WIDTH + eps)
    result = (total * root * scale).to(carry.dtype.element_ty)
    tl.store(carry + slot * carry_stride + column, result, mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _folded_kernel(
    hidden,
    tokens,
    places,
    counts,
    carry,
    carry_stride,
    write_slots,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    count = tl.load(counts + row)
    if count == 0:
        return
    column = tl.arange(0, BLOCK)
    at = tl.load(places + row).to(tl.int64) * tokens + count - 1
    value = tl.load(hidden + at * WIDTH + column, mask=column < WIDTH, other=0.0)
    slot = tl.load(write_slots + row).to(tl.int64)
    to = carry + slot * carry_stride + column
    tl.store(to, value.to(carry.dtype.element_ty), mask=column < WIDTH)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""
    sizes = {"WIDTH": 4096, "BLOCK": 4096}
    return [
        KernelSpec.of(
            "draft_carry",
            _draft_carry_kernel,
            sizes,
            _warps(4096),
            fp32="norm",
            i32="write_slots rows",
        ),
        KernelSpec.of(
            "draft_carry_folded",
            _folded_kernel,
            sizes,
            _warps(4096),
            i32="places counts write_slots",
        ),
    ]
