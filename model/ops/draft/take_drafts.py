"""Use of drafts kept on the device as input tokens of the next step. The step takes the drafts of
the step before by batch index, without the host.

A program owns one row. It is launched without overlap. Reference: an index in PyTorch.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.kernel_spec import KernelSpec


def take_drafts(
    ids: Tensor, width: int, counts: Tensor, taken: Tensor, lanes: Tensor, drafts: Tensor
) -> None:
    """Replace tokens of `ids` by drafts kept on the device, without the host.

    If taken[r] is not 0, drafts[lanes[r]] replace all tokens of row r except the first. ids: [B
    * width] int32, with counts[r] valid tokens in row r. counts, taken, lanes: [B] int32. drafts:
    [lanes, at least counts - 1] int32.
    """
    _draft_take_kernel[(len(counts),)](
        ids,
        counts,
        taken,
        lanes,
        drafts,
        drafts.stride(0),
        width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=1,
    )


@triton.jit(do_not_specialize=["drafts_stride", "width"])
def _draft_take_kernel(
    ids, counts, taken, lanes, drafts, drafts_stride, width, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    if tl.load(taken + row) == 0:
        return
    place = tl.arange(0, BLOCK)
    own = (place > 0) & (place < tl.load(counts + row))
    lane = tl.load(lanes + row).to(tl.int64)
    found = tl.load(drafts + lane * drafts_stride + place - 1, own, 0)
    tl.store(ids + row * width + place, found, own)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for rows of three drafts."""
    integers = "ids counts taken lanes drafts"
    return [KernelSpec.of("draft_take", _draft_take_kernel, {"BLOCK": 4}, 1, i32=integers)]
