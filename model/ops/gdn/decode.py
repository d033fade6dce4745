"""One token of each of B sequences through a GDN layer, from in_proj's output to out_proj's input.

Two launches; the second starts while the first runs. `gdn_step_inputs` moves the convolution on and
makes the gates: little work. In the second launch a program owns one value head of one row. It
reads the head's [value_dim, key_dim] state once and writes it once, nearly all of the traffic. Half
of it or all is on the way before it waits for the first launch. Reference: `TorchOperators.gdn`.

read_slots[i] may be write_slots[i] (in place). No row may read a slot written by another row. The
kernel before this pair in the stream may not write slots or rows: they are read while it still
runs.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.weights.layers import GdnWeights
from tasuki.utils.triton.instructions import dependent, prefetch, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .decode_inputs import gdn_step_inputs
from .math import silu
from .reference_rounding import StateNoise
from .state_rounding import halved_state, line_words, step_words

# Measured on an H200: a whole state in flight, and two programs at a time on a multiprocessor.
_BLOCK = 64
_STAGES = 3
_WARPS = 8
# The wait comes after one part in this many of a state is requested. With few rows most programs
# run at once, and whole states would drive each other out of the cache.
_AHEAD_OF_FEW = 2
_AHEAD_OF_MANY = 1
_FEW_ROWS = 32


def gdn_decode(
    projected: Tensor,
    weights: GdnWeights,
    config: DeltaNetConfig,
    conv: Tensor,
    ssm: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    rows: Tensor,
    positions: Tensor,
) -> Tensor:
    """Run one token of each sequence through a GDN mixer, and write the next states. Return [B,
    value_heads * value_dim] in projected's dtype; rows from rows[0] on are left unwritten.

    projected [B, conv_channels | value_heads * value_dim (z) | value_heads (b) | value_heads (a)],
    any row stride. conv [slots, channels, width - 1] and ssm [slots, value_heads, value_dim,
    key_dim] are views of the arena: dense except for the slot stride. read_slots, write_slots [B]:
    slots of the state before and after. rows [1]: number of valid rows. positions [B]: of the
    tokens. All four are int32 on the device. Head dimensions are powers of two.
    """
    inputs = gdn_step_inputs(projected, weights, config, conv, read_slots, write_slots, rows)
    batch, heads = projected.shape[0], config.value_heads
    output = projected.new_empty(batch, heads * config.value_dim)
    state_bytes = config.value_dim * config.key_dim * ssm.element_size()
    _gdn_decode_kernel[(heads, batch)](
        projected[:, config.conv_channels :],
        projected.stride(0),
        inputs.mixed,
        inputs.scalars,
        weights.norm,
        ssm,
        ssm.stride(0),
        read_slots,
        write_slots,
        rows,
        positions,
        output,
        config.norm_eps,
        StateNoise(weights.number, config.first_value_head).origin,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        LINE=min(128 // ssm.element_size(), config.key_dim),
        BLOCK=min(_BLOCK, config.value_dim),
        STAGES=_STAGES,
        AHEAD=state_bytes // (_AHEAD_OF_FEW if batch <= _FEW_ROWS else _AHEAD_OF_MANY),
        num_warps=_WARPS,
        **dependent(projected),
    )
    return output


@triton.jit(do_not_specialize=["origin"])
def _gdn_decode_kernel(
    z,
    projected_stride,
    mixed,
    scalars,
    norm,
    ssm,
    ssm_stride,
    read_slots,
    write_slots,
    rows,
    positions,
    output,
    eps,
    origin,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    LINE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    head = tl.program_id(0)
    row = tl.program_id(1)
    # Load these together, so padding is noticed without a second wait.
    count = tl.load(rows)
    read = tl.load(read_slots + row).to(tl.int64)
    write = tl.load(write_slots + row).to(tl.int64)
    position = tl.load(positions + row)
    if row >= count:
        wait_for_inputs(DEPENDENT)
        return
    # Lines have 128 bytes.
    LINES: tl.constexpr = KEY_DIM // LINE
    BLOCKS: tl.constexpr = VALUE_DIM // BLOCK
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    old = ssm + read * ssm_stride + head * (VALUE_DIM * KEY_DIM)
    new = ssm + write * ssm_stride + head * (VALUE_DIM * KEY_DIM)
    if DEPENDENT:
        prefetch(old, AHEAD)
    wait_for_inputs(DEPENDENT)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    line = tl.arange(0, LINES)
    element = tl.arange(0, LINE)
    value = tl.arange(0, BLOCK)
    column = tl.arange(0, BLOCKS)[:, None] * BLOCK + value[None, :]
    channels = mixed + row.to(tl.int64) * (2 * KEYS + VALUE_HEADS * VALUE_DIM)
    key = channels + key_head * KEY_DIM + line[:, None] * LINE + element[None, :]
    scalars += row * (2 * KEY_HEADS + 2 * VALUE_HEADS)
    q = tl.load(key).to(tl.float32) * tl.load(scalars + key_head)
    k = tl.load(key + KEYS).to(tl.float32) * tl.load(scalars + KEY_HEADS + key_head)
    v = tl.load(channels + 2 * KEYS + head * VALUE_DIM + column).to(tl.float32)
    decay = tl.load(scalars + 2 * KEY_HEADS + head)
    beta = tl.load(scalars + 2 * KEY_HEADS + VALUE_HEADS + head)
    gate = tl.load(z + row.to(tl.int64) * projected_stride + head * VALUE_DIM + column)
    gate = silu(gate.to(tl.float32)) * tl.load(norm + column)
    match = tl.sum(k * q)
    keys, upper = line_words(KEY_DIM, LINE)

    # Three dimensions, so eight lanes share a line, four lanes take rows, and one thread has all
    # lines of a row. A sum over key_dim is then mostly adds, with 3 shuffles instead of 5.
    within = value[:, None, None] * KEY_DIM + line[None, :, None] * LINE + element[None, None, :]
    out = tl.zeros([BLOCKS, BLOCK], tl.float32)
    for block in tl.range(BLOCKS, num_stages=STAGES):
        state = tl.load(old + block * (BLOCK * KEY_DIM) + within).to(tl.float32)
        # Both sums are over the old state: S' q = decay (S q) + delta (k . q).
        read_k = tl.sum(tl.sum(state * k[None, :, :], axis=1), axis=1)
        read_q = tl.sum(tl.sum(state * q[None, :, :], axis=1), axis=1)
        here = tl.arange(0, BLOCKS)[:, None] == block
        delta = beta * (tl.sum(tl.where(here, v, 0.0), axis=0) - decay * read_k)
        state = state * decay + delta[:, None, None] * k[None, :, :]
        if ssm.dtype.element_ty == tl.bfloat16:
            words = step_words(origin + head, position + 1, block * BLOCK + value, delta)
            state = halved_state(state, words[:, None, None], keys, upper)
        tl.store(new + block * (BLOCK * KEY_DIM) + within, state.to(ssm.dtype.element_ty))
        out = tl.where(here, (decay * read_q + delta * match)[None, :], out)

    out *= tl.rsqrt(tl.sum(out * out) / VALUE_DIM + eps) * gate
    to = output + row.to(tl.int64) * (VALUE_HEADS * VALUE_DIM) + head * VALUE_DIM + column
    tl.store(to, out.to(output.dtype.element_ty))


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. They have the shapes of the models 9B,
    4B and 35B-A3B: 16 key and 32 value heads of 128, bfloat16 with states of both dtypes."""
    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128}
    stream = {"BLOCK": _BLOCK, "STAGES": _STAGES, "AHEAD": 32768, "DEPENDENT": True}
    return [
        KernelSpec.of(
            name,
            _gdn_decode_kernel,
            heads | stream | {"LINE": line},
            _WARPS,
            fp32=f"scalars norm {states}",
            i32="read_slots write_slots rows positions",
        )
        for name, line, states in (("gdn_decode", 32, "ssm"), ("gdn_decode_bf16_states", 64, ""))
    ]
