"""Gives each (token, choice) pair its row in the order that grouped matrix products want.

Shapes: a RankedChoice of moe_route.py -> positions [T, chosen] int32, ends [experts] int32.
Twin: `naive_place`. Rows are sorted by expert, then by token: stable, no atomics, no host sync.
ends[e] is the row after the last of expert e. One launch: each program sums the counts of all runs
of tokens again, which is cheaper than a launch in between.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...pycache.kernel_spec import KernelSpec
from .moe_route import RankedChoice

_RUNS_A_STEP = 16
_PAIRS_A_STEP = 512
_WARPS = 8


@dataclass(frozen=True)
class Placement:
    """positions [T, chosen] int32; ends [experts] int32, ascending."""

    positions: Tensor
    ends: Tensor


def naive_place(experts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(positions, ends) of experts [T, chosen] in which every token counts."""
    flat = experts.flatten().long()
    positions = flat.argsort(stable=True).argsort()
    ends = flat.bincount(minlength=count).cumsum(0)
    return positions.view_as(experts).int(), ends.int()


def place(choice: RankedChoice) -> Placement:
    """Pairs of tokens that were not counted get positions without meaning."""
    runs, experts = choice.counts.shape
    tokens, chosen = choice.experts.shape
    positions = torch.empty_like(choice.experts)
    ends = torch.empty(experts, dtype=torch.int32, device=positions.device)
    _place[(runs,)](
        choice.experts,
        choice.ranks,
        choice.counts,
        positions,
        ends,
        runs,
        tokens * chosen,
        choice.run_tokens * chosen,
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        RUNS_A_STEP=_RUNS_A_STEP,
        PAIRS_A_STEP=_PAIRS_A_STEP,
        num_warps=_WARPS,
    )
    return Placement(positions, ends)


@triton.jit
def _place(
    experts,
    ranks,
    counts,
    positions,
    ends,
    runs,
    pairs,
    run_pairs,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    RUNS_A_STEP: tl.constexpr,
    PAIRS_A_STEP: tl.constexpr,
):
    run = tl.program_id(0)
    expert = tl.arange(0, PADDED)
    before = tl.zeros([PADDED], tl.int32)
    total = tl.zeros([PADDED], tl.int32)
    for first in range(0, runs, RUNS_A_STEP):
        other = first + tl.arange(0, RUNS_A_STEP)
        inside = (other < runs)[:, None] & (expert < EXPERTS)[None, :]
        found = tl.load(counts + other[:, None] * EXPERTS + expert[None, :], inside, 0)
        total += tl.sum(found, axis=0)
        before += tl.sum(tl.where((other < run)[:, None], found, 0), axis=0)
    end = tl.cumsum(total, axis=0)
    if run == 0:
        tl.store(ends + expert, end, expert < EXPERTS)
    base = end - total + before
    for first in range(0, run_pairs, PAIRS_A_STEP):
        here = first + tl.arange(0, PAIRS_A_STEP)
        pair = run * run_pairs + here
        kept = (here < run_pairs) & (pair < pairs)
        begin = tl.gather(base, tl.load(experts + pair, kept, 0), 0)
        tl.store(positions + pair, begin + tl.load(ranks + pair, kept, 0), kept)


def compile_specs() -> list[KernelSpec]:
    """The published numbers of experts."""
    names = ("experts", "ranks", "counts", "positions", "ends")
    signature = dict.fromkeys(names, "*i32") | dict.fromkeys(("runs", "pairs", "run_pairs"), "i32")
    steps = {"RUNS_A_STEP": _RUNS_A_STEP, "PAIRS_A_STEP": _PAIRS_A_STEP}
    return [
        KernelSpec(
            f"moe_place_{experts}",
            _place,
            signature,
            {"EXPERTS": experts, "PADDED": experts} | steps,
            num_warps=_WARPS,
        )
        for experts in (256, 512)
    ]
