"""Chooses each token's experts and weighs them; on request also ranks the pairs by expert.

Shapes: logits [T, experts] -> weights [T, chosen] float32, experts [T, chosen] int32.
Twin: `model.ops.moe.route` of the logits; equal logits go to the lowest expert. The weights are a
softmax over the chosen logits alone, which is what renormalising a softmax over all of them is.
A (token, choice) is a pair. For moe_place.py the kernel counts, for each run of tokens, the pairs
of each expert, and gives each pair its rank among the pairs of its run that chose the same expert,
in the order of tokens. Tokens past rows[0] get experts and weights of 0 and are not counted.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...pycache.kernel_spec import KernelSpec

# Every program of moe_place.py reads the counts of all runs, so there must not be many.
_MOST_RUNS = 128
_TILE = 2048


@dataclass(frozen=True)
class Choice:
    """weights [T, chosen] float32; experts [T, chosen] int32."""

    weights: Tensor
    experts: Tensor


@dataclass(frozen=True)
class RankedChoice(Choice):
    """ranks [T, chosen] int32; counts [runs, experts] int32; each run has run_tokens tokens, the
    last one fewer."""

    ranks: Tensor
    counts: Tensor
    run_tokens: int


def choose(logits: Tensor, chosen: int, rows: Tensor) -> Choice:
    """The experts of each of the first rows[0] tokens. logits [T, experts], row-strided."""
    tokens, experts = logits.shape
    choice = Choice(*_empty_choice(logits, chosen))
    tile = max(1, _TILE // triton.next_power_of_2(experts))
    _route[(triton.cdiv(tokens, tile),)](
        logits,
        rows,
        choice.weights,
        choice.experts,
        None,
        None,
        tokens,
        logits.stride(0),
        1,
        **_constants(experts, chosen, tile, rank=False),
    )
    return choice


def choose_and_rank(logits: Tensor, chosen: int, rows: Tensor) -> RankedChoice:
    """As `choose`, with ranks and counts."""
    tokens, experts = logits.shape
    tile = max(1, _TILE // triton.next_power_of_2(experts))
    tiles = triton.cdiv(triton.cdiv(tokens, tile), _MOST_RUNS)
    runs = triton.cdiv(tokens, tiles * tile)
    counts = torch.empty(runs, experts, dtype=torch.int32, device=logits.device)
    weights, ids = _empty_choice(logits, chosen)
    choice = RankedChoice(weights, ids, torch.empty_like(ids), counts, tiles * tile)
    _route[(runs,)](
        logits,
        rows,
        choice.weights,
        choice.experts,
        choice.ranks,
        choice.counts,
        tokens,
        logits.stride(0),
        tiles,
        **_constants(experts, chosen, tile, rank=True),
    )
    return choice


def _empty_choice(logits: Tensor, chosen: int) -> tuple[Tensor, Tensor]:
    weights = torch.empty(logits.shape[0], chosen, dtype=torch.float32, device=logits.device)
    return weights, torch.empty_like(weights, dtype=torch.int32)


def _constants(experts: int, chosen: int, tile: int, rank: bool) -> dict[str, object]:
    return {
        "EXPERTS": experts,
        "PADDED": triton.next_power_of_2(experts),
        "CHOSEN": chosen,
        "CHOSEN_PADDED": triton.next_power_of_2(chosen),
        "TILE": tile,
        "RANK": rank,
    }


@triton.jit
def _route(
    logits,
    rows,
    out_weights,
    out_experts,
    out_ranks,
    out_counts,
    tokens,
    stride,
    tiles,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    CHOSEN_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    RANK: tl.constexpr,
):
    run = tl.program_id(0)
    expert = tl.arange(0, PADDED)
    choice = tl.arange(0, CHOSEN_PADDED)
    routed = tl.minimum(tokens, tl.load(rows))
    counts = tl.zeros([PADDED], tl.int32)
    for tile in range(tiles):
        token = (run * tiles + tile) * TILE + tl.arange(0, TILE)
        inside = (token < routed)[:, None] & (expert < EXPERTS)[None, :]
        at = token.to(tl.int64)[:, None] * stride + expert[None, :]
        bits = tl.load(logits + at, inside, 0.0).to(tl.float32).to(tl.int32, bitcast=True)
        # Integers in the order of the floats, above an id that prefers the lowest: keys differ.
        ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        keys = (ordered.to(tl.int64) << 32) | (PADDED - 1 - expert)[None, :].to(tl.int64)
        taken = -0x8000000000000000
        keys = tl.where((expert < EXPERTS)[None, :], keys, taken)
        weights = tl.zeros([TILE, CHOSEN_PADDED], tl.float32)
        experts = tl.zeros([TILE, CHOSEN_PADDED], tl.int32)
        largest = tl.zeros([TILE], tl.float32)
        for number in tl.static_range(CHOSEN):
            best = tl.max(keys, axis=1)
            keys = tl.where(keys == best[:, None], taken, keys)
            high = (best >> 32).to(tl.int32)
            value = (high ^ ((high >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
            if number == 0:
                largest = value
            here = (choice == number)[None, :]
            weights = tl.where(here, tl.exp(value - largest)[:, None], weights)
            experts = tl.where(here, (PADDED - 1 - (best & 0xFFFF).to(tl.int32))[:, None], experts)
        weights /= tl.sum(weights, axis=1)[:, None]
        routable = (token < routed)[:, None]
        weights = tl.where(routable, weights, 0.0)
        experts = tl.where(routable, experts, 0)
        pairs = token[:, None] * CHOSEN + choice[None, :]
        kept = (token < tokens)[:, None] & (choice < CHOSEN)[None, :]
        tl.store(out_weights + pairs, weights, kept)
        tl.store(out_experts + pairs, experts, kept)
        if RANK:
            chose = ((keys == taken) & inside).to(tl.int32)
            before = counts[None, :] + tl.cumsum(chose, axis=0) - chose
            tl.store(out_ranks + pairs, tl.gather(before, experts, 1), kept)
            counts += tl.sum(chose, axis=0)
    if RANK:
        tl.store(out_counts + run * EXPERTS + expert, counts, expert < EXPERTS)


def compile_specs() -> list[KernelSpec]:
    """The published sizes: 256 experts top 8 and 512 top 10, bf16 logits."""
    names = ("logits", "rows", "out_weights", "out_experts", "out_ranks", "out_counts")
    types = ("*bf16", "*i32", "*fp32", "*i32", "*i32", "*i32")
    signature = dict(zip(names, types, strict=True)) | {"tokens": "i32", "stride": "i32:16"}
    alone = {name: signature[name] for name in signature if name not in ("out_ranks", "out_counts")}
    none = {"out_ranks": None, "out_counts": None, "tiles": 1}
    ranked = [
        KernelSpec(
            f"moe_route_ranked_{experts}_{chosen}",
            _route,
            signature | {"tiles": "i32"},
            _constants(experts, chosen, _TILE // experts, rank=True),
        )
        for experts, chosen in ((256, 8), (512, 10))
    ]
    constants = none | _constants(256, 8, _TILE // 256, rank=False)
    return [*ranked, KernelSpec("moe_route_256_8", _route, alone, constants)]
