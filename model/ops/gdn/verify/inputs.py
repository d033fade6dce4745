"""First launch of a GDN layer in a verification of drafts. It convolves every token and computes
the gates. It keeps both as inputs of a later fold (storing the state after accepted tokens).

A program owns some heads of a row, of q, k or v, and goes through its tokens. With few rows a
program has one token, and reads the tokens before it anew. Each window is summed as in
`gdn_step_inputs`, for any number of a row's tokens. No slot is written. Slots and counts are read
before the kernel ahead has ended; it may not write them. Reference: the same steps of
`TorchOperators.gdn`.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.weights.layers import GdnWeights
from tasuki.utils.triton.instructions import dependent, start_next, wait
from tasuki.utils.triton.kernel_spec import KernelSpec

from ..conv_window import conv_taps, convolved, store_scalars
from ..math import silu
from .kept_inputs import LayerInputs

_HEADS = 2
_WARPS = 2
_FEW_ROWS = 8
"""Largest number of rows for programs of one token each. With more rows a program goes through all
tokens of its row."""


def verify_inputs(
    projected: Tensor,
    weights: GdnWeights,
    config: DeltaNetConfig,
    conv: Tensor,
    read_slots: Tensor,
    counts: Tensor,
    rows: Tensor,
    kept: LayerInputs,
    turn: Tensor,
) -> None:
    """Compute the recurrence's inputs of the first counts[r] tokens of each row r, for the first
    rows[0] rows. Keep them at place r in set number `turn` of `kept`.

    projected [B * T, ...]: T tokens per row; other arguments as in `gdn_verify`.
    """
    batch, heads = len(counts), 2 * config.key_heads + config.value_heads
    tokens = projected.shape[0] // batch
    places = 1 if batch <= _FEW_ROWS else tokens
    _gdn_verify_inputs_kernel[(triton.cdiv(heads, _HEADS), tokens // places, batch)](
        projected,
        projected.stride(0),
        tokens,
        weights.conv,
        weights.decay_rate,
        weights.dt_bias,
        conv,
        conv.stride(0),
        read_slots,
        counts,
        rows,
        kept.raw,
        kept.mixed,
        kept.scalars,
        turn,
        kept.raw.stride(0),
        kept.scalars.stride(0),
        kept.raw.shape[2],
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        DIM=max(config.key_dim, config.value_dim),
        HEADS=_HEADS,
        WIDTH=config.conv_width,
        PLACES=places,
        num_warps=_WARPS,
        **dependent(projected),
    )


@triton.jit(do_not_specialize=["tokens", "kept_tokens", "turn_size", "turn_numbers"])
def _gdn_verify_inputs_kernel(
    projected,
    projected_stride,
    tokens,
    weight,
    decay_rate,
    dt_bias,
    conv,
    conv_stride,
    read_slots,
    counts,
    rows,
    raw,
    mixed,
    scalars,
    turn,
    turn_size,
    turn_numbers,
    kept_tokens,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PLACES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    # Before its wait the next launch reads only states, and this launch does not write any.
    if DEPENDENT:
        start_next()
    begin = tl.program_id(1) * PLACES
    row = tl.program_id(2)
    live = row < tl.load(rows)
    count = tl.load(counts + row)
    if not (live & (begin < count)):
        if DEPENDENT:
            wait()
        return
    read = tl.load(read_slots + row).to(tl.int64)
    own = tl.load(turn).to(tl.int64)
    raw += own * turn_size
    mixed += own * turn_size
    scalars += own * turn_numbers
    KEYS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM
    CHANNELS: tl.constexpr = KEYS + VALUE_HEADS * VALUE_DIM
    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)[:, None]
    is_key = head < 2 * KEY_HEADS
    value_head = head - 2 * KEY_HEADS
    is_value = (value_head >= 0) & (value_head < VALUE_HEADS)
    element = tl.arange(0, DIM)[None, :]
    channel = tl.where(is_key, head * KEY_DIM, KEYS + value_head * VALUE_DIM) + element
    exists = (is_key & (element < KEY_DIM)) | (is_value & (element < VALUE_DIM))
    taps = conv_taps(weight, channel, exists, WIDTH)
    # The slot's columns hold the tokens before the row's first. A window reaches WIDTH - 1 back.
    columns = conv + read * conv_stride + channel * (WIDTH - 1) + begin
    stored = tl.tuple(())
    for column in tl.static_range(WIDTH - 1):
        before = exists & (begin + column < WIDTH - 1)
        stored += (tl.load(columns + column, mask=before, other=0.0),)
    rate = tl.load(decay_rate + value_head, mask=is_value, other=0.0)
    bias = tl.load(dt_bias + value_head, mask=is_value, other=0.0)
    if DEPENDENT:
        wait()

    first = projected + (row * tokens).to(tl.int64) * projected_stride
    window = tl.tuple(())
    for column in tl.static_range(WIDTH - 1 + PLACES):
        back = begin + column - (WIDTH - 1)
        computed = exists & (back >= 0) & (back < count)
        earlier = first + back.to(tl.int64) * projected_stride
        token = tl.load(earlier + channel, mask=computed, other=0.0)
        if column < WIDTH - 1:
            token = tl.where(back >= 0, token, stored[column].to(token.dtype))
        window += (token,)
    for number in tl.static_range(PLACES):
        place = begin + number
        if place < count:
            inputs = first + place.to(tl.int64) * projected_stride
            gate = inputs + CHANNELS + VALUE_HEADS * VALUE_DIM + value_head
            b = tl.load(gate, mask=is_value, other=0.0).to(tl.float32)
            a = tl.load(gate + VALUE_HEADS, mask=is_value, other=0.0).to(tl.float32)
            total = convolved(window, taps, number, WIDTH)
            # The operator's output is rounded in the same way, so keeping it rounded loses nothing.
            activated = silu(total).to(mixed.dtype.element_ty)
            at = (row * kept_tokens + place).to(tl.int64)
            tl.store(raw + at * CHANNELS + channel, window[number + WIDTH - 1], mask=exists)
            tl.store(mixed + at * CHANNELS + channel, activated, mask=exists)
            to = scalars + at * (2 * KEY_HEADS + 2 * VALUE_HEADS) + head
            decay = (rate, a, bias)
            store_scalars(
                to, activated, head, decay, b, is_key, is_value, KEY_HEADS, VALUE_HEADS, KEY_DIM
            )


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. They have the shapes of the models 9B,
    4B and 35B-A3B: 16 key and 32 value heads of 128, bfloat16."""
    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128, "DIM": 128}
    return [
        KernelSpec.of(
            name,
            _gdn_verify_inputs_kernel,
            heads | {"HEADS": _HEADS, "WIDTH": 4, "PLACES": places, "DEPENDENT": True},
            _WARPS,
            fp32="decay_rate dt_bias scalars",
            i32="read_slots counts rows turn",
        )
        for name, places in (("gdn_verify_inputs", 4), ("gdn_verify_inputs_few", 1))
    ]
