"""The position of each (token, expert) pair among all pairs sorted by expert, for grouped matrix
products.

Shapes: experts [T, chosen] int32 -> positions [T, chosen] int32, ends [count] int32. Reference:
`naive_permute_index` in reference.py.

Rows are sorted by expert, then by token: stable, without atomics on memory, and the host never
waits. ends[e] is the row after the last of expert e. Two launches go over runs of pairs. In the
first each run counts its experts. In the second each run sums the counts of all runs again, cheaper
than a launch in between, and ranks its own pairs. Pairs of tokens past rows[0] take no row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.kernel_spec import KernelSpec

# Every run reads the counts of all runs, so there must not be many.
_MOST_RUNS = 128
_RUNS_A_STEP = 32
# Pairs compared with one another at a time.
_STEP = 128
_WARPS = 8


@dataclass(frozen=True)
class Permutation:
    """The order of (token, expert) pairs sorted by expert. positions [T, chosen] int32: position of
    each pair; ends [count] int32, ascending: end of each expert's pairs."""

    positions: Tensor
    ends: Tensor


def permute_index(experts: Tensor, count: int, rows: Tensor) -> Permutation:
    """Compute and return the positions of (token, expert) pairs sorted by expert. experts [T,
    chosen]: ids below `count`. rows [1]: number of valid tokens; pairs of further tokens get
    undefined positions."""
    tokens, chosen = experts.shape
    pairs = tokens * chosen
    steps = triton.cdiv(triton.cdiv(pairs, _STEP), _MOST_RUNS)
    runs = triton.cdiv(pairs, steps * _STEP)
    counts = torch.empty(runs, count, dtype=torch.int32, device=experts.device)
    positions = torch.empty_like(experts)
    ends = torch.empty(count, dtype=torch.int32, device=experts.device)
    sizes = {"EXPERTS": count, "PADDED": triton.next_power_of_2(count), "CHOSEN": chosen}
    _count[(runs,)](experts, rows, counts, pairs, steps, **sizes, STEP=_STEP, num_warps=_WARPS // 2)
    _index[(runs,)](
        experts,
        rows,
        counts,
        positions,
        ends,
        runs,
        pairs,
        steps,
        **sizes,
        STEP=_STEP,
        RUNS_A_STEP=_RUNS_A_STEP,
        num_warps=_WARPS,
    )
    return Permutation(positions, ends)


@triton.jit(do_not_specialize=["pairs", "steps"])
def _count(
    experts,
    rows,
    counts,
    pairs,
    steps,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    STEP: tl.constexpr,
):
    run = tl.program_id(0)
    placed = tl.minimum(pairs, tl.load(rows) * CHOSEN)
    expert = tl.arange(0, PADDED)
    found = tl.zeros([PADDED], tl.int32)
    for step in range(steps):
        pair = (run * steps + step) * STEP + tl.arange(0, STEP)
        found += tl.histogram(tl.load(experts + pair, pair < placed, 0), PADDED, pair < placed)
    tl.store(counts + run * EXPERTS + expert, found, expert < EXPERTS)


@triton.jit(do_not_specialize=["runs", "pairs", "steps"])
def _index(
    experts,
    rows,
    counts,
    positions,
    ends,
    runs,
    pairs,
    steps,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    STEP: tl.constexpr,
    RUNS_A_STEP: tl.constexpr,
):
    run = tl.program_id(0)
    placed = tl.minimum(pairs, tl.load(rows) * CHOSEN)
    expert = tl.arange(0, PADDED)
    # Summed over steps first: a sum over the runs of a step crosses warps.
    all_runs = tl.zeros([RUNS_A_STEP, PADDED], tl.int32)
    earlier_runs = tl.zeros([RUNS_A_STEP, PADDED], tl.int32)
    for first in range(0, runs, RUNS_A_STEP):
        other = first + tl.arange(0, RUNS_A_STEP)
        inside = (other < runs)[:, None] & (expert < EXPERTS)[None, :]
        found = tl.load(counts + other[:, None] * EXPERTS + expert[None, :], inside, 0)
        all_runs += found
        earlier_runs += tl.where((other < run)[:, None], found, 0)
    total = tl.sum(all_runs, axis=0)
    end = tl.cumsum(total, axis=0)
    if run == 0:
        tl.store(ends + expert, end, expert < EXPERTS)
    base = end - total + tl.sum(earlier_runs, axis=0)
    number = tl.arange(0, STEP)
    earlier = number[None, :] < number[:, None]
    for step in range(steps):
        pair = (run * steps + step) * STEP + number
        kept = pair < placed
        mine = tl.load(experts + pair, kept, 0)
        other = tl.load(experts + pair, kept, -1)
        rank = tl.sum((earlier & (mine[:, None] == other[None, :])).to(tl.int32), axis=1)
        tl.store(positions + pair, tl.gather(base, mine, 0) + rank, kept)
        base += tl.histogram(mine, PADDED, kept)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the published numbers of
    experts."""
    specs = []
    for count, chosen in ((256, 8), (512, 10)):
        sizes = {"EXPERTS": count, "PADDED": count, "CHOSEN": chosen, "STEP": _STEP}
        wide = sizes | {"RUNS_A_STEP": _RUNS_A_STEP}
        names = f"moe_count_{count}", f"moe_permute_index_{count}"
        specs += [
            KernelSpec.of(names[0], _count, sizes, _WARPS // 2, pointers="*i32"),
            KernelSpec.of(names[1], _index, wide, _WARPS, pointers="*i32"),
        ]
    return specs
