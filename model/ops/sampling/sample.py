"""Sampling of every row's next token inside a CUDA graph.

Shapes: logits [B, vocab] of any float dtype, row-strided; all other inputs and results have one
number per row. Reference: `reference.sample`; both take the noise of model/ops/sampling/gumbel.py.

A score is the logit plus the noise times the temperature. So greedy sampling (temperature 0) needs
no code of its own. Equal scores go to the lowest id. There are two launches: each program finds the
best two scores of a run of the vocabulary, then one program per row joins the runs. The host never
waits; rows past rows[0] are unwritten. A row with only NaN logits samples token 0, with a NaN
logprob.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.ops.word_mix_kernel import mix
from tasuki.utils.triton.kernel_spec import KernelSpec

from .gumbel import LARGEST
from .radix_keys import RUN, RUN_WARPS, Cut, key_of
from .slice import Slice

_LARGEST = tl.constexpr(LARGEST)
_OF_A_RUN = 6


@dataclass(frozen=True)
class Draws:
    """Parameters and results of a batch's sampling: device tensors with one number per row, at
    fixed addresses for a CUDA graph.

    temperature, top_p: float32. top_k: int32, 0 keeps all tokens. keys: [B, 2] int32, from
    `gumbel.noise_key`. positions: int32, position of each sampled token. Results: token int32,
    logprob and margin float32, as in `reference.Sampled`.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    keys: Tensor
    positions: Tensor
    token: Tensor
    logprob: Tensor
    margin: Tensor

    @staticmethod
    def empty(batch: int, device: torch.device | str) -> "Draws":
        """Return parameters for greedy sampling at position 0. The results are undefined until
        sample() runs."""
        integers = torch.zeros(batch, dtype=torch.int32, device=device)
        floats = torch.zeros(batch, dtype=torch.float32, device=device)
        return Draws(
            temperature=floats,
            top_k=integers,
            top_p=torch.ones_like(floats),
            keys=torch.zeros(batch, 2, dtype=torch.int32, device=device),
            positions=torch.zeros_like(integers),
            token=torch.empty_like(integers),
            logprob=torch.empty_like(floats),
            margin=torch.empty_like(floats),
        )


def sample(
    logits: Tensor,
    draws: Draws,
    rows: Tensor,
    cut: Cut | None = None,
    mask: Tensor | None = None,
    ids: Tensor | None = None,
    of: Slice | None = None,
) -> None:
    """Sample one token for each of the first rows[0] rows: fill token, logprob and margin of
    `draws`.

    top_k and top_p of `draws` are ignored. cut: a cut of these logits (top_k_top_p.py); only the
    tokens it keeps are sampled. mask [B, at least vocab / 8] uint8: only tokens with a set bit are
    sampled, bit t % 8 of byte t // 8. Logprobs stay those of the whole distribution. ids [vocab]
    int64, ascending: ids of the tokens, if the logits cover a part of the model's vocabulary; each
    token keeps its own noise. of: this rank's part, if ranks have different parts of the
    vocabulary. All ranks sample the same token, and the other options are absent.
    """
    batch, vocab = logits.shape
    runs = triton.cdiv(vocab, RUN)
    # Ranks exchange only this one block. Its rows are a multiple of four, so its parts are aligned
    # to 16 bytes. Other alignments would compile the kernels again.
    places = triton.cdiv(batch, 4) * 4
    found = torch.empty(_OF_A_RUN, places, runs, dtype=torch.float32, device=logits.device)
    _best_of_run[(runs, batch)](
        logits,
        *((None,) * 3 if cut is None else (cut.keys, cut.left, cut.equals)),
        mask,
        ids,
        draws.temperature,
        draws.keys,
        draws.positions,
        rows,
        *_apart(found),
        vocab,
        0 if of is None else of.first,
        logits.stride(0),
        0 if mask is None else mask.stride(0),
        places * runs,
        CUT=cut is not None,
        MASKED=mask is not None,
        NARROW=logits.dtype is torch.bfloat16,
        RUN=RUN,
        RUNS=triton.next_power_of_2(runs),
        num_warps=RUN_WARPS,
    )
    if of is not None:
        found = of.gather(found)
        runs = found.shape[-1]
    _join_runs[(batch,)](
        *_apart(found),
        rows,
        draws.token,
        draws.logprob,
        draws.margin,
        runs,
        places * runs,
        RUNS=triton.next_power_of_2(runs),
        num_warps=1,
    )


def _apart(found: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Divide the results of all runs into three views: best [3, places, runs], mass [2, places,
    runs], token [places, runs] int32."""
    return found[:3], found[3:5], found[5].view(torch.int32)


@triton.jit
def _gumbel(key_0, key_1, position, token):
    """Return the Gumbel noise of tokens, as in model/ops/sampling/gumbel.py. key_0, key_1,
    position, token: uint32."""
    first = mix(position ^ key_0)
    second = mix(first + key_1)
    hashed = mix(mix(token ^ first) + second)
    uniform = tl.minimum((hashed.to(tl.float32) + 0.5) * 2.3283064365386963e-10, _LARGEST)
    # -log(1 - u) for small u, because 1 - u would lose its digits. Six terms are exact to float32.
    series = 0.2 + uniform * 0.16666667
    series = 1 + uniform * (0.5 + uniform * (0.33333333 + uniform * (0.25 + uniform * series)))
    exponential = tl.where(uniform < 0.0625, uniform * series, -tl.log(1 - uniform))
    return -tl.log(exponential)


@triton.jit(do_not_specialize=["plane", "mask_stride", "first_id"])
def _best_of_run(
    logits,
    cut_keys,
    cut_left,
    cut_equals,
    mask,
    names,
    temperature,
    keys,
    positions,
    rows,
    best,
    mass,
    token,
    vocab,
    first_id,
    stride,
    mask_stride,
    plane,
    CUT: tl.constexpr,
    MASKED: tl.constexpr,
    NARROW: tl.constexpr,
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Find the best two scores in one run of the vocabulary. best [3, B, runs]: best score, second
    score, logit of the best; mass [2, B, runs]: largest logit, sum of exp(logit - largest)."""
    run = tl.program_id(0)
    row = tl.program_id(1)
    if row >= tl.load(rows):
        return
    columns = run * RUN + tl.arange(0, RUN)
    inside = columns < vocab
    logit = tl.load(logits + row.to(tl.int64) * stride + columns, inside, -float("inf"))
    ids = first_id + columns
    order = key_of(logit, NARROW)
    logit = logit.to(tl.float32)
    score = logit
    if CUT:
        edge = tl.load(cut_keys + row).to(tl.uint32, bitcast=True)
        other = tl.arange(0, RUNS)
        equals = tl.load(cut_equals + row * tl.num_programs(0) + other, other < run, 0)
        equal = order == edge
        rank = tl.sum(equals, axis=0) + tl.cumsum(equal.to(tl.int32), axis=0)
        kept = (order > edge) | (equal & (rank <= tl.load(cut_left + row)))
        score = tl.where(kept, logit, -float("inf"))
    if MASKED:
        bits = tl.load(mask + row.to(tl.int64) * mask_stride + ids // 8, inside, 0)
        score = tl.where((bits.to(tl.int32) >> (ids % 8)) & 1 != 0, score, -float("inf"))
    if names is not None:
        ids = tl.load(names + ids, inside, 2147483647).to(tl.int32)
    heat = tl.load(temperature + row)
    if heat > 0:
        noise = _gumbel(
            tl.load(keys + 2 * row).to(tl.uint32, bitcast=True),
            tl.load(keys + 2 * row + 1).to(tl.uint32, bitcast=True),
            tl.load(positions + row).to(tl.uint32, bitcast=True),
            ids.to(tl.uint32),
        )
        score += heat * noise
    first = tl.max(score, axis=0)
    winner = tl.min(tl.where(score == first, ids, 2147483647), axis=0)
    second = tl.max(tl.where(ids == winner, -float("inf"), score), axis=0)
    largest = tl.max(logit, axis=0)
    at = best + row * tl.num_programs(0) + run
    tl.store(at, first)
    tl.store(at + plane, second)
    tl.store(at + 2 * plane, tl.max(tl.where(ids == winner, logit, -float("inf")), axis=0))
    at = mass + row * tl.num_programs(0) + run
    tl.store(at, largest)
    # A run of only -inf has no mass: -inf minus -inf would be NaN, and so would the row be.
    level = tl.where(largest == -float("inf"), 0.0, largest)
    tl.store(at + plane, tl.sum(tl.exp(logit - level), axis=0))
    tl.store(token + row * tl.num_programs(0) + run, winner)


@triton.jit(do_not_specialize=["plane", "runs"])
def _join_runs(
    best, mass, token, rows, out_token, out_logprob, out_margin, runs, plane, RUNS: tl.constexpr
):
    row = tl.program_id(0)
    if row >= tl.load(rows):
        return
    run = tl.arange(0, RUNS)
    inside = run < runs
    at = row * runs + run
    scores = tl.load(best + at, inside, -float("inf"))
    seconds = tl.load(best + plane + at, inside, -float("inf"))
    chosen = tl.load(best + 2 * plane + at, inside, -float("inf"))
    largest = tl.load(mass + at, inside, -float("inf"))
    sums = tl.load(mass + plane + at, inside, 0.0)
    ids = tl.load(token + at, inside, 2147483647)
    first = tl.max(scores, axis=0)
    # Runs ascend in ids, so the first of the tied runs has the lowest id.
    winner = tl.min(tl.where(scores == first, run, RUNS), axis=0)
    won = run == winner
    rest = tl.max(tl.where(won, seconds, scores), axis=0)
    top = tl.max(largest, axis=0)
    total = tl.sum(tl.where(inside, sums * tl.exp(largest - top), 0.0), axis=0)
    logit = tl.max(tl.where(won, chosen, -float("inf")), axis=0)
    logprob = logit - top - tl.log(total)
    # Among NaN scores none is the best, and the winner may be past the vocabulary. Its lookup in
    # the embedding would end the process.
    drawn = tl.where(logprob == logprob, tl.sum(tl.where(won, ids, 0), axis=0), 0)
    tl.store(out_token + row, drawn)
    tl.store(out_logprob + row, logprob)
    tl.store(out_margin + row, first - rest)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. They have the published vocabulary,
    with and without a cut by top_k and top_p, and under a mask."""
    width = {"RUNS": triton.next_power_of_2(triton.cdiv(248320, RUN))}
    cuts = "cut_keys cut_left cut_equals"

    def best_of_run(
        name: str, dtype: str, cut: bool, masked: bool, named: bool = False
    ) -> KernelSpec:
        constants = {"CUT": cut, "MASKED": masked, "NARROW": dtype == "bf16", "RUN": RUN} | width
        absent = [
            *([] if cut else cuts.split()),
            *([] if masked else ["mask"]),
            *([] if named else ["names"]),
        ]
        return KernelSpec.of(
            f"sampling_{name}_{dtype}",
            _best_of_run,
            constants | dict.fromkeys(absent),
            RUN_WARPS,
            fp32="temperature best mass",
            i32="keys positions rows token" + (f" {cuts}" if cut else ""),
            logits=f"*{dtype}",
            vocab="i32:16",
            pointers="*i64" if named else "*u8",
        )

    joined = KernelSpec.of(
        "sampling_join_runs",
        _join_runs,
        width,
        1,
        fp32="best mass out_logprob out_margin",
        i32="token rows out_token",
    )
    best = [
        best_of_run(name, dtype, cut, masked)
        for dtype in ("fp32", "bf16")
        for name, cut, masked in (
            ("best_of_run", False, False),
            ("best_of_run_cut", True, False),
            ("best_of_run_masked", False, True),
        )
    ]
    part = best_of_run("best_of_run_of_a_part", "bf16", cut=False, masked=False, named=True)
    return [*best, part, joined]
