"""The cut of each row of logits by top_k, then by top_p, without sorting.

Shapes: logits [B, vocab] of any float dtype, row-strided. Reference: `reference._restrict`.

The lowest kept key (radix_keys.py) is found digit by digit, 4 bits per launch. Each run of the
vocabulary adds up, by their next digit, its keys beginning with the digits found so far. The next
launch picks the digit at which the sum, from the largest key down, reaches its target. The target
is top_k tokens, then top_p of the remaining mass. Sums have a fixed order; there are no atomics,
and the host never waits. A bf16 key has 4 digits, a float32 key 8. Launches for an unset limit
return immediately.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .radix_keys import RUN, RUN_WARPS, Cut, key_of, value_of
from .sample import Draws

# Tokens summed at a time, in 16 columns: more would crowd the registers.
_STEP = 256


def cut(logits: Tensor, draws: Draws) -> Cut:
    """Return the cut of every row by its top_k and top_p. top_k 0 and top_p 1 keep every token.
    Equal logits are kept in the order of ids."""
    batch, vocab = logits.shape
    runs = triton.cdiv(vocab, RUN)
    digits = 4 if logits.dtype is torch.bfloat16 else 8
    integers, floats = draws.token.new_empty, draws.logprob.new_empty
    # A launch's results for the next have a plane per digit, so nothing is overwritten in between.
    sums = floats(2 * digits, batch, runs, 16)
    found = integers(2 * digits, batch)
    above = floats(2 * digits, batch)
    # The largest logit of each run, and its mass above the cut of top_k; then that cut.
    of_runs = floats(2, batch, runs)
    of_top_k = integers(2, batch)
    result = Cut(integers(batch), integers(batch), integers(batch, runs))
    arguments = (
        *(logits, draws.temperature, draws.top_k, draws.top_p),
        *(sums, found, above, of_runs, of_top_k),
        *(vocab, logits.stride(0), runs),
    )
    options = {
        "DIGITS": digits,
        "RUN": RUN,
        "RUNS": triton.next_power_of_2(runs),
        **dependent(logits),
        "num_warps": RUN_WARPS,
    }
    for number in range(digits):
        _count_digit[(runs, batch)](*arguments, number, STEP=_STEP, **options)
    for number in range(digits):
        _weigh_digit[(runs, batch)](*arguments, number, STEP=_STEP, **options)
    _settle[(runs, batch)](*arguments, result.keys, result.left, result.equals, **options)
    return result


@triton.jit
def _next_digit(sums, found, above, target, plane, RUNS: tl.constexpr):
    """Pick the next digit of the cut's key. Return (digits of the key so far, sum of the weights
    above them). plane: number of the digit in `sums`. REQUIRES: the sums of `plane` are
    complete."""
    row, rows, runs = tl.program_id(1), tl.num_programs(1), tl.num_programs(0)
    digit = tl.arange(0, 16)
    run = tl.arange(0, RUNS)
    at = ((plane * rows + row) * runs + run)[:, None] * 16 + digit[None, :]
    total = tl.sum(tl.load(sums + at, (run < runs)[:, None], 0.0), axis=0)
    # Not a difference of running sums, because the sum above the largest digit must be exactly 0.
    higher = tl.sum(tl.where(digit[None, :] > digit[:, None], total[None, :], 0.0), axis=1)
    own = tl.sum(tl.where(digit[None, :] == digit[:, None], total[None, :], 0.0), axis=1)
    higher += tl.load(above + plane * rows + row)
    picked = tl.min(tl.where((own > 0) & (higher < target), digit, 15), axis=0)
    key = tl.load(found + plane * rows + row) * 16 + picked
    return key, tl.sum(tl.where(digit == picked, higher, 0.0), axis=0)


@triton.jit
def _begin(sums, found, above, target, first_plane, number, RUNS: tl.constexpr):
    """Return the key's digits before digit `number` of a search. Store these digits, and the sum of
    weights above them, for the next launch."""
    key = tl.full([], 0, tl.int32)
    higher = tl.full([], 0, tl.float32)
    plane = first_plane + number
    if number > 0:
        key, higher = _next_digit(sums, found, above, target, plane - 1, RUNS)
    if tl.program_id(0) == 0:
        tl.store(found + plane * tl.num_programs(1) + tl.program_id(1), key)
        tl.store(above + plane * tl.num_programs(1) + tl.program_id(1), higher)
    return key.to(tl.uint32, bitcast=True)


@triton.jit
def _weight(keys, largest, heat, WEIGH: tl.constexpr, NARROW: tl.constexpr):
    if WEIGH:
        weight = tl.exp((value_of(keys, NARROW) - largest) / heat)
    else:
        weight = tl.full(keys.shape, 1, tl.float32)
    return weight


@triton.jit
def _add_by_digit(
    line, vocab, sums, begin, shift, plane, largest, heat, WEIGH, NARROW, RUN, STEP: tl.constexpr
):
    """Sum the weights of one run's keys whose digits begin with `begin`, by their next digit. Store
    the 16 sums."""
    run, row = tl.program_id(0), tl.program_id(1)
    digit = tl.arange(0, 16)
    total = tl.zeros([16, STEP], tl.float32)
    every = run * RUN + tl.arange(0, RUN)
    every_key = key_of(tl.load(line + every, every < vocab, 0.0), NARROW)
    some = ((every_key >> shift) >> 4 == begin) & (every < vocab)
    # After two digits most runs hold no such key.
    if tl.max(some.to(tl.int32), axis=0) > 0:
        for step in range(0, RUN, STEP):
            ids = run * RUN + step + tl.arange(0, STEP)
            keys = key_of(tl.load(line + ids, ids < vocab, 0.0), NARROW)
            match = ((keys >> shift) >> 4 == begin) & (ids < vocab)
            weight = tl.where(match, _weight(keys, largest, heat, WEIGH, NARROW), 0.0)
            here = ((keys >> shift) & 15).to(tl.int32)[None, :] == digit[:, None]
            total += tl.where(here, weight[None, :], 0.0)
    at = (plane * tl.num_programs(1) + row) * tl.num_programs(0) + run
    tl.store(sums + at * 16 + digit, tl.sum(total, axis=1))


@triton.jit(do_not_specialize=["number", "runs"])
def _count_digit(
    logits,
    temperature,
    top_k,
    top_p,
    sums,
    found,
    above,
    of_runs,
    of_top_k,
    vocab,
    stride,
    runs,
    number,
    DIGITS: tl.constexpr,
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
    STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    run, row = tl.program_id(0), tl.program_id(1)
    line = logits + row.to(tl.int64) * stride
    if number == 0:
        ids = run * RUN + tl.arange(0, RUN)
        value = tl.load(line + ids, ids < vocab, -float("inf")).to(tl.float32)
        tl.store(of_runs + row * runs + run, tl.max(value, axis=0))
    limit = tl.load(top_k + row)
    if limit == 0:
        return
    begin = _begin(sums, found, above, limit.to(tl.float32), 0, number, RUNS)
    shift = 4 * (DIGITS - 1 - number)
    _add_by_digit(line, vocab, sums, begin, shift, number, 0.0, 1.0, False, DIGITS == 4, RUN, STEP)


@triton.jit
def _heat(temperature, row):
    heat = tl.load(temperature + row)
    return tl.where(heat > 0, heat, 1.0)


@triton.jit
def _largest(of_runs, row, runs, RUNS: tl.constexpr):
    run = tl.arange(0, RUNS)
    return tl.max(tl.load(of_runs + row * runs + run, run < runs, -float("inf")), axis=0)


@triton.jit
def _target(top_p, of_runs, of_top_k, row, runs, largest, heat, NARROW, RUNS: tl.constexpr):
    """Return the target of the top_p search: top_p times the probability mass that top_k leaves."""
    run = tl.arange(0, RUNS)
    rows = tl.num_programs(1)
    masses = tl.load(of_runs + (rows + row) * runs + run, run < runs, 0.0)
    key = tl.load(of_top_k + row).to(tl.uint32, bitcast=True)
    left = tl.load(of_top_k + rows + row)
    at_key = tl.where(left > 0, left * tl.exp((value_of(key, NARROW) - largest) / heat), 0.0)
    return tl.load(top_p + row) * (tl.sum(masses, axis=0) + at_key)


@triton.jit(do_not_specialize=["number", "runs"])
def _weigh_digit(
    logits,
    temperature,
    top_k,
    top_p,
    sums,
    found,
    above,
    of_runs,
    of_top_k,
    vocab,
    stride,
    runs,
    number,
    DIGITS: tl.constexpr,
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
    STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_inputs(DEPENDENT)
    run, row, rows = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    NARROW: tl.constexpr = DIGITS == 4
    line = logits + row.to(tl.int64) * stride
    heat = _heat(temperature, row)
    largest = _largest(of_runs, row, runs, RUNS)
    target = tl.full([], 0, tl.float32)
    if number == 0:
        edge = tl.full([], 0, tl.int32)
        left = tl.full([], 0, tl.int32)
        limit = tl.load(top_k + row)
        if limit > 0:
            wanted = limit.to(tl.float32)
            edge, higher = _next_digit(sums, found, above, wanted, DIGITS - 1, RUNS)
            left = (wanted - higher).to(tl.int32)
        if run == 0:
            tl.store(of_top_k + row, edge)
            tl.store(of_top_k + rows + row, left)
        ids = run * RUN + tl.arange(0, RUN)
        keys = key_of(tl.load(line + ids, ids < vocab, 0.0), NARROW)
        kept = (keys > edge.to(tl.uint32, bitcast=True)) & (ids < vocab)
        mass = tl.where(kept, _weight(keys, largest, heat, True, NARROW), 0.0)
        tl.store(of_runs + (rows + row) * runs + run, tl.sum(mass, axis=0))
    if tl.load(top_p + row) >= 1:
        return
    if number > 0:
        target = _target(top_p, of_runs, of_top_k, row, runs, largest, heat, NARROW, RUNS)
    begin = _begin(sums, found, above, target, DIGITS, number, RUNS)
    shift = 4 * (DIGITS - 1 - number)
    plane = DIGITS + number
    _add_by_digit(line, vocab, sums, begin, shift, plane, largest, heat, True, NARROW, RUN, STEP)


@triton.jit(do_not_specialize=["runs"])
def _settle(
    logits,
    temperature,
    top_k,
    top_p,
    sums,
    found,
    above,
    of_runs,
    of_top_k,
    vocab,
    stride,
    runs,
    out_keys,
    out_left,
    out_equals,
    DIGITS: tl.constexpr,
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Store the result of both searches: the higher of the two keys, and the number of tokens kept
    at this key. Store the number of tokens with this key in each run too."""
    wait_for_inputs(DEPENDENT)
    run, row = tl.program_id(0), tl.program_id(1)
    NARROW: tl.constexpr = DIGITS == 4
    key = tl.load(of_top_k + row).to(tl.uint32, bitcast=True)
    left = tl.load(of_top_k + tl.num_programs(1) + row)
    if tl.load(top_p + row) < 1:
        heat = _heat(temperature, row)
        largest = _largest(of_runs, row, runs, RUNS)
        target = _target(top_p, of_runs, of_top_k, row, runs, largest, heat, NARROW, RUNS)
        lower, higher = _next_digit(sums, found, above, target, 2 * DIGITS - 1, RUNS)
        other = lower.to(tl.uint32, bitcast=True)
        weight = tl.exp((value_of(other, NARROW) - largest) / heat)
        short = tl.ceil(tl.minimum((target - higher) / weight, 1e9)).to(tl.int32)
        short = tl.maximum(short, 1)
        if other > key:
            key = other
            left = short
        elif other == key:
            left = tl.minimum(left, short)
    ids = run * RUN + tl.arange(0, RUN)
    keys = key_of(tl.load(logits + row.to(tl.int64) * stride + ids, ids < vocab, 0.0), NARROW)
    equals = tl.sum(((keys == key) & (ids < vocab)).to(tl.int32), axis=0)
    tl.store(out_equals + row * runs + run, equals)
    if run == 0:
        tl.store(out_keys + row, key.to(tl.int32, bitcast=True))
        tl.store(out_left + row, left)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the published vocabulary, bf16 and
    float32 logits."""
    runs = triton.next_power_of_2(triton.cdiv(248320, RUN))

    def spec(name: str, kernel: Any, dtype: str, results: str = "", **more: int) -> KernelSpec:
        digits = 4 if dtype == "bf16" else 8
        return KernelSpec.of(
            f"sampling_{name}_{dtype}",
            kernel,
            {"DIGITS": digits, "RUN": RUN, "RUNS": runs, "DEPENDENT": True} | more,
            RUN_WARPS,
            fp32="temperature top_p sums above of_runs",
            i32=f"top_k found of_top_k {results}",
            logits=f"*{dtype}",
            vocab="i32:16",
        )

    return [
        item
        for dtype in ("fp32", "bf16")
        for item in (
            spec("count_digit", _count_digit, dtype, STEP=_STEP),
            spec("weigh_digit", _weigh_digit, dtype, STEP=_STEP),
            spec("settle", _settle, dtype, "out_keys out_left out_equals"),
        )
    ]
