"""Choice of each token's experts, with their weights, from router logits.

Shapes: logits [T, experts] -> weights [T, chosen] float32, experts [T, chosen] int32, best first.
Reference: `reference.route` of the logits; equal logits go to the lowest expert, NaN is the lowest
logit.

The weights are a softmax over the chosen logits only, equal to a renormalised softmax over all. If
this rank has a part of the experts, ids count from its first expert. Experts of other ranks get the
weight 0 and the id after the last own expert. Tokens past rows[0] are neither read nor written.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

# A program has one warp, so no round of the choice waits for another warp. In large batches a
# second row fills the latency of the first.
_LOGITS_A_PROGRAM = 512
_FEW_TOKENS = 512


@dataclass(frozen=True)
class Choice:
    """The experts chosen for each token, best first. weights [T, chosen] float32; experts [T,
    chosen] int32: expert ids."""

    weights: Tensor
    experts: Tensor


def choose(logits: Tensor, chosen: int, rows: Tensor, held: range | None = None) -> Choice:
    """Choose the experts of each of the first rows[0] tokens, and return the choice. logits [T,
    experts]: router logits, any row stride. held: range of experts on this rank; None: all. Ids
    count from its first expert. An expert outside it gets the weight 0 and the id len(held)."""
    tokens, experts = logits.shape
    here = range(experts) if held is None else held
    weights = torch.empty(tokens, chosen, dtype=torch.float32, device=logits.device)
    ids = torch.empty(tokens, chosen, dtype=torch.int32, device=logits.device)
    tile = _tile(tokens, experts)
    _choose[(triton.cdiv(tokens, tile),)](
        logits,
        rows,
        weights,
        ids,
        tokens,
        logits.stride(0),
        **_constants(experts, chosen, tile),
        NARROW=logits.dtype is torch.bfloat16,
        FIRST=here.start,
        HELD=len(here),
        **dependent(logits),
        num_warps=1,
    )
    return Choice(weights, ids)


def _tile(tokens: int, experts: int) -> int:
    if tokens <= _FEW_TOKENS:
        return 1
    return max(1, _LOGITS_A_PROGRAM // int(triton.next_power_of_2(experts)))


def _constants(experts: int, chosen: int, tile: int) -> dict[str, object]:
    return {
        "EXPERTS": experts,
        "PADDED": triton.next_power_of_2(experts),
        "CHOSEN": chosen,
        "CHOSEN_PADDED": triton.next_power_of_2(chosen),
        "TILE": tile,
    }


@triton.jit(do_not_specialize=["tokens"])
def _choose(
    logits,
    rows,
    out_weights,
    out_experts,
    tokens,
    stride,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    CHOSEN_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    NARROW: tl.constexpr,
    FIRST: tl.constexpr,
    HELD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    routed = tl.minimum(tokens, tl.load(rows))
    if tl.program_id(0) * TILE >= routed:
        return
    expert = tl.arange(0, PADDED)
    choice = tl.arange(0, CHOSEN_PADDED)
    inside = (token < routed)[:, None] & (expert < EXPERTS)[None, :]
    at = token.to(tl.int64)[:, None] * stride + expert[None, :]
    logit = tl.load(logits + at, inside, 0.0).to(tl.float32)
    bits = tl.where(logit == logit, logit, -3.4028235e38).to(tl.int32, bitcast=True)
    # Integers in the order of the floats, above a number that prefers the lowest id. All differ, so
    # one maximum finds value and id. A bf16 leaves room for the id in 32 bits.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    preference = (PADDED - 1 - expert)[None, :]
    if NARROW:
        taken = -0x80000000
        keys = (ordered & -0x10000) | preference
    else:
        taken = -0x8000000000000000
        keys = (ordered.to(tl.int64) << 32) | preference.to(tl.int64)
    keys = tl.where((expert < EXPERTS)[None, :], keys, taken)
    weights = tl.zeros([TILE, CHOSEN_PADDED], tl.float32)
    experts = tl.zeros([TILE, CHOSEN_PADDED], tl.int32)
    largest = tl.zeros([TILE], tl.float32)
    for number in tl.static_range(CHOSEN):
        best = tl.max(keys, axis=1)
        keys = tl.where(keys == best[:, None], taken, keys)
        if NARROW:
            # The bits below a negative bf16 are ones here, zeros in the float.
            high = (best ^ ((best >> 31) & 0x7FFFFFFF)) & -0x10000
        else:
            high = (best >> 32).to(tl.int32)
            high = high ^ ((high >> 31) & 0x7FFFFFFF)
        value = high.to(tl.float32, bitcast=True)
        if number == 0:
            largest = value
        here = (choice == number)[None, :]
        weights = tl.where(here, tl.exp(value - largest)[:, None], weights)
        experts = tl.where(here, (PADDED - 1 - (best & 0xFFFF).to(tl.int32))[:, None], experts)
    weights /= tl.sum(weights, axis=1)[:, None]
    if HELD < EXPERTS:
        here = (experts >= FIRST) & (experts < FIRST + HELD)
        experts = tl.where(here, experts - FIRST, HELD)
        weights = tl.where(here, weights, 0.0)
    pairs = token[:, None] * CHOSEN + choice[None, :]
    kept = (token < routed)[:, None] & (choice < CHOSEN)[None, :]
    tl.store(out_weights + pairs, weights, kept)
    tl.store(out_experts + pairs, experts, kept)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. Cases: 256 experts top 8 and 512 top
    10, bf16 logits, one token and many; float32 for tests against stored results."""
    return [
        KernelSpec.of(
            f"moe_choose_{experts}_{chosen}_{'bf16' if narrow else 'fp32'}_tile{tile}",
            _choose,
            _constants(experts, chosen, tile)
            | {"NARROW": narrow, "FIRST": 0, "HELD": experts, "DEPENDENT": True},
            1,
            fp32="out_weights" if narrow else "out_weights logits",
            i32="rows out_experts",
        )
        for experts, chosen, narrow, tile in (
            (256, 8, True, 1),
            (256, 8, True, 2),
            (512, 10, True, 1),
            (256, 8, False, 1),
        )
    ]
