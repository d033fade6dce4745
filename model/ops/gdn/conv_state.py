"""Storing of convolution states: a GDN layer's prefill writes its last inputs into slots.

It is a launch of its own, after `gdn_conv` has read the slots, because a sequence may store into
the slot it reads. Reference: the stored state of `reference_conv.causal_conv`.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.utils.triton.kernel_spec import KernelSpec

from .prefill_plan import GdnPrefillPlan

_CHANNELS = 256
_WARPS = 4


def store_conv_columns(
    projected: Tensor, config: DeltaNetConfig, conv: Tensor, plan: GdnPrefillPlan
) -> None:
    """Store the last width - 1 convolution inputs before each stored position of the plan into its
    slot."""
    grid = (triton.cdiv(config.conv_channels, _CHANNELS), plan.sequences.shape[0])
    _columns_kernel[grid](
        projected,
        projected.stride(0),
        conv,
        conv.stride(0),
        plan.sequences,
        plan.saves,
        CHANNELS=config.conv_channels,
        COLUMNS=config.conv_width - 1,
        PADDED=triton.next_power_of_2(config.conv_width - 1),
        BLOCK=_CHANNELS,
        num_warps=_WARPS,
    )


@triton.jit
def _columns_kernel(
    projected,
    projected_stride,
    conv,
    conv_stride,
    sequences,
    saves,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sequence = sequences + 6 * tl.program_id(1)
    start = tl.load(sequence).to(tl.int64)
    read = tl.load(sequence + 1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, PADDED)
    inside = (channel < CHANNELS)[:, None] & (column < COLUMNS)[None, :]
    within = channel[:, None] * COLUMNS + column[None, :]
    for save in range(tl.load(sequence + 4), tl.load(sequence + 5)):
        offset = tl.load(saves + 2 * save)
        slot = tl.load(saves + 2 * save + 1).to(tl.int64)
        place = offset - COLUMNS + column
        fresh = tl.load(
            projected + (start + place)[None, :] * projected_stride + channel[:, None],
            mask=inside & (place >= 0)[None, :],
            other=0.0,
        )
        stored = tl.load(
            conv + read * conv_stride + within + offset,
            mask=inside & (place < 0)[None, :],
            other=0.0,
        )
        # A column kept in the slot moves to a place that another thread may not have read yet.
        tl.debug_barrier()
        columns = fresh.to(conv.dtype.element_ty) + stored
        tl.store(conv + slot * conv_stride + within, columns, mask=inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the models 9B, 4B and 35B-A3B in
    bfloat16."""
    sizes = {"CHANNELS": 8192, "COLUMNS": 3, "PADDED": 4, "BLOCK": _CHANNELS}
    tables = "sequences saves"
    return [KernelSpec.of("gdn_conv_columns", _columns_kernel, sizes, _WARPS, i32=tables)]
