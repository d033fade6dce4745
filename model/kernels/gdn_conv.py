"""The convolution of a GDN layer over packed sequences, and the columns it leaves in the slots.

`gdn_conv` also brings q and k to unit length and lays everything out by chunk: [chunk, head, CHUNK,
dim] with zeros where a chunk is short, so that the kernels after it need no masks. Twin:
`model.ops.conv.causal_conv` with `model.ops.norm.l2_norm`.

The columns are stored by a launch of their own, after every first window has been read: a sequence
may store into the slot it reads.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...pycache.kernel_spec import KernelSpec
from ..config import ModelConfig
from .gdn_math import silu
from .gdn_plan import CHUNK, GdnPrefillPlan

# Tokens of a program: few, since the window and the taps of each stay in registers.
_TOKENS = 16
_WARPS = 4
_CHANNELS = 256


def gdn_conv(
    projected: Tensor, weight: Tensor, config: ModelConfig, conv: Tensor, plan: GdnPrefillPlan
) -> tuple[Tensor, Tensor]:
    """kq [N, key_heads, 2, CHUNK, key_dim], k before q, q scaled by key_dim ** -0.5, and v [N,
    value_heads, CHUNK, value_dim], in projected's dtype.

    projected [T, q | k | v | ...], any row stride; weight [channels, width]; conv [slots, channels,
    width - 1], dense but for the slot stride.
    """
    chunks = plan.chunks.shape[0]
    kq = projected.new_empty(chunks, config.key_heads, 2, CHUNK, config.key_dim)
    v = projected.new_empty(chunks, config.value_heads, CHUNK, config.value_dim)
    grid = (2 * config.key_heads + config.value_heads, CHUNK // _TOKENS, chunks)
    _conv_kernel[grid](
        projected,
        projected.stride(0),
        weight,
        conv,
        conv.stride(0),
        plan.chunks,
        kq,
        v,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        DIM=max(config.key_dim, config.value_dim),
        WIDTH=config.conv_width,
        TAPS=triton.next_power_of_2(config.conv_width),
        TOKENS=_TOKENS,
        CHUNK=CHUNK,
        num_warps=_WARPS,
    )
    return kq, v


def store_conv_columns(
    projected: Tensor, config: ModelConfig, conv: Tensor, plan: GdnPrefillPlan
) -> None:
    """The last width - 1 inputs before each save of the plan, into its slot."""
    grid = (triton.cdiv(config.conv_channels, _CHANNELS), plan.sequences.shape[0])
    _columns_kernel[grid](
        projected,
        projected.stride(0),
        conv,
        conv.stride(0),
        plan.sequences,
        plan.saves,
        CHANNELS=config.conv_channels,
        COLUMNS=config.conv_width - 1,
        PADDED=triton.next_power_of_2(config.conv_width - 1),
        BLOCK=_CHANNELS,
        num_warps=_WARPS,
    )


@triton.jit
def _conv_kernel(
    projected,
    projected_stride,
    weight,
    conv,
    conv_stride,
    chunks,
    kq,
    v,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    TOKENS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    head = tl.program_id(0)
    chunk = tl.program_id(2)
    row = chunks + 4 * chunk
    first, count = tl.load(row), tl.load(row + 1)
    start, slot = tl.load(row + 2), tl.load(row + 3).to(tl.int64)
    is_value = head >= 2 * KEY_HEADS
    size = tl.where(is_value, VALUE_DIM, KEY_DIM)
    base = tl.where(
        is_value,
        2 * KEY_HEADS * KEY_DIM + (head - 2 * KEY_HEADS) * VALUE_DIM,
        head * KEY_DIM,
    )

    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    dim = tl.arange(0, DIM)
    channel = base + dim
    fits = (dim < size)[None, :]
    inside = (token < count)[:, None] & fits
    # Tokens of its sequence before each row; its last WIDTH - 1 predecessors may be in the slot.
    place = first - start + token
    rows = projected + (start + place).to(tl.int64)[:, None] * projected_stride + channel[None, :]
    tap = tl.arange(0, TAPS)
    taps = tl.load(
        weight + channel[:, None] * WIDTH + tap[None, :],
        mask=(dim < size)[:, None] & (tap < WIDTH)[None, :],
        other=0.0,
    ).to(tl.float32)
    total = tl.zeros([TOKENS, DIM], tl.float32)
    for back in tl.static_range(WIDTH):
        x = tl.load(
            rows - back * projected_stride, mask=inside & (place >= back)[:, None], other=0.0
        )
        weights = tl.sum(tl.where(tap[None, :] == WIDTH - 1 - back, taps, 0.0), axis=1)
        total += x.to(tl.float32) * weights[None, :]
    if first - start < WIDTH - 1:
        for back in tl.static_range(1, WIDTH):
            column = conv + slot * conv_stride + channel * (WIDTH - 1) + WIDTH - 1 - back
            stored = tl.load(
                column[None, :] + place[:, None],
                mask=inside & (place < back)[:, None],
                other=0.0,
            )
            weights = tl.sum(tl.where(tap[None, :] == WIDTH - 1 - back, taps, 0.0), axis=1)
            total += stored.to(tl.float32) * weights[None, :]
    activated = silu(total).to(projected.dtype.element_ty)

    within = token[:, None] * size + dim[None, :]
    if is_value:
        to = v + (chunk.to(tl.int64) * VALUE_HEADS + head - 2 * KEY_HEADS) * (CHUNK * VALUE_DIM)
        tl.store(to + within, activated, mask=fits)
    else:
        wide = activated.to(tl.float32)
        length = tl.rsqrt(tl.sum(wide * wide, axis=1) + 1e-6)
        is_q = head < KEY_HEADS
        length *= tl.where(is_q, KEY_DIM**-0.5, 1.0)
        pair = 2 * (chunk.to(tl.int64) * KEY_HEADS + head % KEY_HEADS) + is_q.to(tl.int32)
        to = kq + pair * (CHUNK * KEY_DIM)
        tl.store(to + within, (wide * length[:, None]).to(kq.dtype.element_ty), mask=fits)


@triton.jit
def _columns_kernel(
    projected,
    projected_stride,
    conv,
    conv_stride,
    sequences,
    saves,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sequence = sequences + 6 * tl.program_id(1)
    start = tl.load(sequence).to(tl.int64)
    read = tl.load(sequence + 1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, PADDED)
    inside = (channel < CHANNELS)[:, None] & (column < COLUMNS)[None, :]
    within = channel[:, None] * COLUMNS + column[None, :]
    for save in range(tl.load(sequence + 4), tl.load(sequence + 5)):
        offset = tl.load(saves + 2 * save)
        slot = tl.load(saves + 2 * save + 1).to(tl.int64)
        place = offset - COLUMNS + column
        fresh = tl.load(
            projected + (start + place)[None, :] * projected_stride + channel[:, None],
            mask=inside & (place >= 0)[None, :],
            other=0.0,
        )
        stored = tl.load(
            conv + read * conv_stride + within + offset,
            mask=inside & (place < 0)[None, :],
            other=0.0,
        )
        # A column that stays in the slot moves over one that another thread may not have read yet.
        tl.debug_barrier()
        columns = fresh.to(conv.dtype.element_ty) + stored
        tl.store(conv + slot * conv_stride + within, columns, mask=inside)


def compile_specs() -> list[KernelSpec]:
    """9B, 4B and 35B-A3B in bfloat16."""
    common = {
        "projected": "*bf16",
        "projected_stride": "i32:16",
        "conv": "*bf16",
        "conv_stride": "i32:16",
    }
    return [
        KernelSpec(
            name="gdn_conv",
            kernel=_conv_kernel,
            signature={**common, "weight": "*bf16", "chunks": "*i32", "kq": "*bf16", "v": "*bf16"},
            constants={
                "KEY_HEADS": 16,
                "VALUE_HEADS": 32,
                "KEY_DIM": 128,
                "VALUE_DIM": 128,
                "DIM": 128,
                "WIDTH": 4,
                "TAPS": 4,
                "TOKENS": _TOKENS,
                "CHUNK": CHUNK,
            },
            num_warps=_WARPS,
        ),
        KernelSpec(
            name="gdn_conv_columns",
            kernel=_columns_kernel,
            signature={**common, "sequences": "*i32", "saves": "*i32"},
            constants={"CHANNELS": 8192, "COLUMNS": 3, "PADDED": 4, "BLOCK": _CHANNELS},
            num_warps=_WARPS,
        ),
    ]
