"""First launch of a GDN decode step: the convolution takes one token, and the gates are computed.

A program owns some heads of one row, of q, k or v. Each channel is in one program, so the stored
columns can be moved in place. `gdn_decode` gets the convolution's output, and scalars of each head.
Slots are read before the kernel ahead has ended; it may not write slots or rows. Reference: the
same steps of `TorchOperators.gdn`.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor, float32

from tasuki.model.config import DeltaNetConfig
from tasuki.model.weights.layers import GdnWeights
from tasuki.utils.triton.instructions import dependent, start_next, wait
from tasuki.utils.triton.kernel_spec import KernelSpec

from .conv_window import conv_columns, convolved, store_scalars
from .math import silu


@dataclass(frozen=True)
class Share:
    """The part of a row for one program: its number of heads, and its number of warps."""

    heads: int
    warps: int


# Measured on an H200: few rows end sooner in small programs, many rows in half as many programs.
_FEW = Share(1, 1)
_MANY = Share(2, 2)
_FEW_ROWS = 32


@dataclass(frozen=True)
class StepInputs:
    """Inputs of the recurrence in a decode step. mixed [B, q | k | v] in the activations' dtype:
    silu of the convolution. scalars [B, ...] float32, four groups with one number per head: key_dim
    ** -0.5 over q's length | one over k's length | decay | beta."""

    mixed: Tensor
    scalars: Tensor


def gdn_step_inputs(
    projected: Tensor,
    weights: GdnWeights,
    config: DeltaNetConfig,
    conv: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    rows: Tensor,
) -> StepInputs:
    """Compute and return the recurrence's inputs for a decode step, and move the convolution
    columns on in the slots. Arguments: see `gdn_decode`. Rows from rows[0] on are left
    unwritten."""
    batch, heads = projected.shape[0], 2 * config.key_heads + config.value_heads
    inputs = StepInputs(
        mixed=projected.new_empty(batch, config.conv_channels),
        scalars=projected.new_empty(
            batch, 2 * config.key_heads + 2 * config.value_heads, dtype=float32
        ),
    )
    share = _FEW if batch <= _FEW_ROWS else _MANY
    _gdn_step_inputs_kernel[(triton.cdiv(heads, share.heads), batch)](
        projected,
        projected.stride(0),
        weights.conv,
        weights.decay_rate,
        weights.dt_bias,
        conv,
        conv.stride(0),
        read_slots,
        write_slots,
        rows,
        inputs.mixed,
        inputs.scalars,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        DIM=max(config.key_dim, config.value_dim),
        HEADS=share.heads,
        WIDTH=config.conv_width,
        TAPS=triton.next_power_of_2(config.conv_width),
        num_warps=share.warps,
        **dependent(projected),
    )
    return inputs


@triton.jit
def _gdn_step_inputs_kernel(
    projected,
    projected_stride,
    weight,
    decay_rate,
    dt_bias,
    conv,
    conv_stride,
    read_slots,
    write_slots,
    rows,
    mixed,
    scalars,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    # Before its wait the next launch reads only states, and this launch does not write any.
    if DEPENDENT:
        start_next()
    row = tl.program_id(1)
    count = tl.load(rows)
    read = tl.load(read_slots + row).to(tl.int64)
    write = tl.load(write_slots + row).to(tl.int64)
    if row >= count:
        if DEPENDENT:
            wait()
        return
    KEYS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM
    CHANNELS: tl.constexpr = KEYS + VALUE_HEADS * VALUE_DIM
    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)[:, None]
    is_key = head < 2 * KEY_HEADS
    value_head = head - 2 * KEY_HEADS
    is_value = (value_head >= 0) & (value_head < VALUE_HEADS)
    element = tl.arange(0, DIM)[None, :]
    channel = tl.where(is_key, head * KEY_DIM, KEYS + value_head * VALUE_DIM) + element
    exists = (is_key & (element < KEY_DIM)) | (is_value & (element < VALUE_DIM))
    tap = tl.arange(0, TAPS)[None, None, :]
    inside = exists[:, :, None] & (tap < WIDTH)
    column = channel[:, :, None] * (WIDTH - 1) + tap
    stored = tl.load(conv + read * conv_stride + column, mask=inside & (tap < WIDTH - 1), other=0.0)
    taps = tl.load(weight + channel[:, :, None] * WIDTH + tap, mask=inside, other=0.0)
    rate = tl.load(decay_rate + value_head, mask=is_value, other=0.0)
    bias = tl.load(dt_bias + value_head, mask=is_value, other=0.0)
    if DEPENDENT:
        wait()

    inputs = projected + row.to(tl.int64) * projected_stride
    token = tl.load(inputs + channel, mask=exists, other=0.0)
    gate = inputs + CHANNELS + VALUE_HEADS * VALUE_DIM + value_head
    b = tl.load(gate, mask=is_value, other=0.0).to(tl.float32)
    a = tl.load(gate + VALUE_HEADS, mask=is_value, other=0.0).to(tl.float32)
    window = tl.where(tap == WIDTH - 1, token[:, :, None], stored.to(token.dtype))
    total = convolved(conv_columns(window, WIDTH), conv_columns(taps, WIDTH), 0, WIDTH)
    # The operator's output is rounded in the same way, so this store loses nothing.
    activated = silu(total).to(mixed.dtype.element_ty)
    tl.store(mixed + row.to(tl.int64) * CHANNELS + channel, activated, mask=exists)
    to = scalars + row * (2 * KEY_HEADS + 2 * VALUE_HEADS) + head
    decay = (rate, a, bias)
    store_scalars(to, activated, head, decay, b, is_key, is_value, KEY_HEADS, VALUE_HEADS, KEY_DIM)
    # A column is moved in place, so no thread may overwrite it before another has read it.
    tl.debug_barrier()
    target = conv + write * conv_stride + column - 1
    tl.store(target, window.to(conv.dtype.element_ty), mask=inside & (tap >= 1))


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. They have the shapes of the models 9B,
    4B and 35B-A3B: 16 key and 32 value heads of 128, bfloat16."""
    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128, "DIM": 128}
    window = {"WIDTH": 4, "TAPS": 4, "DEPENDENT": True}
    return [
        KernelSpec.of(
            name,
            _gdn_step_inputs_kernel,
            heads | window | {"HEADS": share.heads},
            share.warps,
            fp32="decay_rate dt_bias scalars",
            i32="read_slots write_slots rows",
        )
        for name, share in (("gdn_step_inputs", _MANY), ("gdn_step_inputs_few", _FEW))
    ]
