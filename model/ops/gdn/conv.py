"""The convolution of a GDN layer over the packed sequences of a prompt forward.

`gdn_conv` also brings q and k to unit length and lays everything out by chunk of 64 tokens. A short
chunk has zeros after its tokens, so later kernels need no masks. A program walks along its tokens
with the convolution's window in registers: every input is read once. Reference:
`reference_conv.causal_conv` with `norm.reference.l2_norm`.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.utils.triton.kernel_spec import KernelSpec

from .math import silu
from .prefill_plan import CHUNK, GdnPrefillPlan

# Tokens processed by a program one after another, and heads processed side by side.
_TOKENS = 32
_HEADS = 4
_WARPS = 2


def gdn_conv(
    projected: Tensor, weight: Tensor, config: DeltaNetConfig, conv: Tensor, plan: GdnPrefillPlan
) -> tuple[Tensor, Tensor]:
    """Return two tensors by chunk, kq and v, in projected's dtype, as parts of one allocation.

    kq: [N, key_heads, 2, CHUNK, key_dim], k before q, q scaled by key_dim ** -0.5. v: [N,
    value_heads, CHUNK, value_dim]. projected: [T, q | k | v | ...], any row stride. weight:
    [channels, width]. conv: [slots, channels, width - 1], dense except for the slot stride. Raises
    ValueError for a width above 4.
    """
    if config.conv_width > 4:
        raise ValueError(
            f"a convolution of width {config.conv_width}; the kernel keeps three earlier tokens, "
            "use the CPU path"
        )
    chunks, heads = plan.chunks.shape[0], 2 * config.key_heads + config.value_heads
    packed = projected.new_empty(chunks * CHUNK * config.conv_channels)
    grid = (triton.cdiv(heads, _HEADS), CHUNK // _TOKENS, chunks)
    _conv_kernel[grid](
        projected,
        projected.stride(0),
        weight,
        conv,
        conv.stride(0),
        plan.chunks,
        packed,
        chunks,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        DIM=max(config.key_dim, config.value_dim),
        HEADS=_HEADS,
        WIDTH=config.conv_width,
        TAPS=triton.next_power_of_2(config.conv_width),
        TOKENS=_TOKENS,
        CHUNK=CHUNK,
        num_warps=_WARPS,
    )
    key_channels = 2 * config.key_heads * config.key_dim
    kq, v = packed.split(
        [chunks * CHUNK * key_channels, packed.numel() - chunks * CHUNK * key_channels]
    )
    return (
        kq.view(chunks, config.key_heads, 2, CHUNK, config.key_dim),
        v.view(chunks, config.value_heads, CHUNK, config.value_dim),
    )


@triton.jit
def _weight(taps, BACK: tl.constexpr, WIDTH: tl.constexpr):
    """Return the convolution's weight for the input BACK tokens ago; 0 if the window is
    narrower."""
    tap = tl.arange(0, taps.shape[2])[None, None, :]
    return tl.sum(tl.where(tap == WIDTH - 1 - BACK, taps, 0.0), axis=2)


@triton.jit
def _stored(column, place, BACK: tl.constexpr, WIDTH: tl.constexpr, mask):
    """Return the convolution input BACK tokens before the token number `place` of its sequence,
    from the slot's columns, if it is before this forward."""
    mask &= (place < BACK) & (BACK < WIDTH)
    return tl.load(column + place + (WIDTH - 1 - BACK), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store_token(to, total, scale, is_value, exists, mask):
    """Store one token's convolved heads. Keys and queries get unit length. Tokens beyond the
    chunk's end are stored as zeros."""
    activated = silu(total).to(to.dtype.element_ty).to(tl.float32)
    length = tl.rsqrt(tl.sum(activated * activated, axis=1) + 1e-6)[:, None] * scale
    shaped = tl.where(exists, activated * tl.where(is_value, 1.0, length), 0.0)
    tl.store(to, shaped.to(to.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["chunk_count"])
def _conv_kernel(
    projected,
    projected_stride,
    weight,
    conv,
    conv_stride,
    chunks,
    packed,
    chunk_count,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(2)
    row = chunks + 4 * chunk
    first, count = tl.load(row), tl.load(row + 1)
    start, slot = tl.load(row + 2), tl.load(row + 3).to(tl.int64)
    begin = tl.program_id(1) * TOKENS

    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, DIM)[None, :]
    is_q, is_value = head < KEY_HEADS, head >= 2 * KEY_HEADS
    value_head = head - 2 * KEY_HEADS
    keys: tl.constexpr = 2 * KEY_HEADS * KEY_DIM
    channel = tl.where(is_value, keys + value_head * VALUE_DIM, head * KEY_DIM) + dim
    size = tl.where(is_value, VALUE_DIM, KEY_DIM)
    mask = (head < 2 * KEY_HEADS + VALUE_HEADS) & (dim < size)
    # Key heads lie as [chunk, head, (k, q), token, dim], value heads behind all chunks of those.
    chunk = chunk.to(tl.int64)
    pair = (chunk * KEY_HEADS + head % KEY_HEADS) * 2 + is_q.to(tl.int32)
    tile = tl.where(
        is_value,
        CHUNK * (chunk_count.to(tl.int64) * keys + (chunk * VALUE_HEADS + value_head) * VALUE_DIM),
        pair * (CHUNK * KEY_DIM),
    )
    to = packed + tile + begin * size + dim
    scale = tl.where(is_q, KEY_DIM**-0.5, 1.0)

    tap = tl.arange(0, TAPS)[None, None, :]
    taps = tl.load(
        weight + channel[:, :, None] * WIDTH + tap, mask=mask[:, :, None] & (tap < WIDTH), other=0.0
    ).to(tl.float32)
    weight_0 = _weight(taps, 0, WIDTH)
    weight_1 = _weight(taps, 1, WIDTH)
    weight_2 = _weight(taps, 2, WIDTH)
    weight_3 = _weight(taps, 3, WIDTH)
    place = first - start + begin
    left = count - begin
    stride = projected_stride
    rows = projected + (first + begin).to(tl.int64) * stride + channel
    alive = mask & (left > 0)
    x_1 = tl.load(rows - stride, mask=alive & (place >= 1), other=0.0).to(tl.float32)
    x_2 = tl.load(rows - 2 * stride, mask=alive & (place >= 2), other=0.0).to(tl.float32)
    x_3 = tl.load(rows - 3 * stride, mask=alive & (place >= 3), other=0.0).to(tl.float32)
    if place < 3:
        column = conv + slot * conv_stride + channel * (WIDTH - 1)
        x_1 += _stored(column, place, 1, WIDTH, alive)
        x_2 += _stored(column, place, 2, WIDTH, alive)
        x_3 += _stored(column, place, 3, WIDTH, alive)
    # A step takes four tokens, and loads the next four meanwhile.
    next_a = tl.load(rows, mask=alive, other=0.0)
    next_b = tl.load(rows + stride, mask=mask & (left > 1), other=0.0)
    next_c = tl.load(rows + 2 * stride, mask=mask & (left > 2), other=0.0)
    next_d = tl.load(rows + 3 * stride, mask=mask & (left > 3), other=0.0)
    for _ in range(TOKENS // 4):
        x_a, x_b = next_a.to(tl.float32), next_b.to(tl.float32)
        x_c, x_d = next_c.to(tl.float32), next_d.to(tl.float32)
        rows += 4 * stride
        next_a = tl.load(rows, mask=mask & (left > 4), other=0.0)
        next_b = tl.load(rows + stride, mask=mask & (left > 5), other=0.0)
        next_c = tl.load(rows + 2 * stride, mask=mask & (left > 6), other=0.0)
        next_d = tl.load(rows + 3 * stride, mask=mask & (left > 7), other=0.0)
        a = x_3 * weight_3 + x_2 * weight_2 + x_1 * weight_1 + x_a * weight_0
        b = x_2 * weight_3 + x_1 * weight_2 + x_a * weight_1 + x_b * weight_0
        c = x_1 * weight_3 + x_a * weight_2 + x_b * weight_1 + x_c * weight_0
        d = x_a * weight_3 + x_b * weight_2 + x_c * weight_1 + x_d * weight_0
        _store_token(to, a, scale, is_value, left > 0, mask)
        _store_token(to + size, b, scale, is_value, left > 1, mask)
        _store_token(to + 2 * size, c, scale, is_value, left > 2, mask)
        _store_token(to + 3 * size, d, scale, is_value, left > 3, mask)
        x_3, x_2, x_1 = x_b, x_c, x_d
        to += 4 * size
        left -= 4


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the models 9B, 4B and 35B-A3B in
    bfloat16."""
    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128, "DIM": 128}
    tiles = {"HEADS": _HEADS, "WIDTH": 4, "TAPS": 4, "TOKENS": _TOKENS, "CHUNK": CHUNK}
    return [KernelSpec.of("gdn_conv", _conv_kernel, heads | tiles, _WARPS, i32="chunks")]
