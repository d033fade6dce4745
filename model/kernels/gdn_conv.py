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

_WARPS = 4
_CHANNELS = 256


def gdn_conv(
    projected: Tensor, weight: Tensor, config: ModelConfig, conv: Tensor, plan: GdnPrefillPlan
) -> tuple[Tensor, Tensor]:
    """qk [N, 2 * key_heads, CHUNK, key_dim], q scaled by key_dim ** -0.5, and v [N, value_heads,
    CHUNK, value_dim], in projected's dtype.

    projected [T, q | k | v | ...], any row stride; weight [channels, width]; conv [slots, channels,
    width - 1], dense but for the slot stride.
    """
    chunks = plan.chunks.shape[0]
    qk = projected.new_empty(chunks, 2 * config.key_heads, CHUNK, config.key_dim)
    v = projected.new_empty(chunks, config.value_heads, CHUNK, config.value_dim)
    _conv_kernel[(2 * config.key_heads + config.value_heads, chunks)](
        projected,
        projected.stride(0),
        weight,
        conv,
        conv.stride(0),
        plan.sequences,
        plan.chunks,
        qk,
        v,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        DIM=max(config.key_dim, config.value_dim),
        WIDTH=config.conv_width,
        CHUNK=CHUNK,
        num_warps=_WARPS,
    )
    return qk, v


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
    sequences,
    chunks,
    qk,
    v,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    head = tl.program_id(0)
    chunk = tl.program_id(1)
    first = tl.load(chunks + 3 * chunk)
    count = tl.load(chunks + 3 * chunk + 1)
    sequence = tl.load(chunks + 3 * chunk + 2)
    start = tl.load(sequences + 6 * sequence)
    slot = tl.load(sequences + 6 * sequence + 1).to(tl.int64)
    is_value = head >= 2 * KEY_HEADS
    size = tl.where(is_value, VALUE_DIM, KEY_DIM)
    base = tl.where(
        is_value,
        2 * KEY_HEADS * KEY_DIM + (head - 2 * KEY_HEADS) * VALUE_DIM,
        head * KEY_DIM,
    )

    token = tl.arange(0, CHUNK)
    dim = tl.arange(0, DIM)
    channel = base + dim
    inside = (token < count)[:, None] & (dim < size)[None, :]
    # Tokens of its sequence before each row; its last WIDTH - 1 predecessors may be in the slot.
    place = first - start + token
    rows = projected + (start + place).to(tl.int64)[:, None] * projected_stride + channel[None, :]
    total = tl.zeros([CHUNK, DIM], tl.float32)
    for tap in tl.static_range(WIDTH):
        back = WIDTH - 1 - tap
        x = tl.load(
            rows - back * projected_stride, mask=inside & (place >= back)[:, None], other=0.0
        )
        if first - start < WIDTH - 1:
            column = conv + slot * conv_stride + channel * (WIDTH - 1)
            stored = tl.load(
                column[None, :] + (place + tap)[:, None],
                mask=inside & (place < back)[:, None],
                other=0.0,
            )
            x += stored.to(x.dtype)
        taps = tl.load(weight + channel * WIDTH + tap, mask=dim < size, other=0.0)
        total += x.to(tl.float32) * taps.to(tl.float32)[None, :]
    activated = silu(total).to(projected.dtype.element_ty)

    within = token[:, None] * size + dim[None, :]
    fits = (token < CHUNK)[:, None] & (dim < size)[None, :]
    if is_value:
        to = v + (chunk.to(tl.int64) * VALUE_HEADS + head - 2 * KEY_HEADS) * (CHUNK * VALUE_DIM)
        tl.store(to + within, activated, mask=fits)
    else:
        wide = activated.to(tl.float32)
        length = tl.rsqrt(tl.sum(wide * wide, axis=1) + 1e-6)
        length *= tl.where(head < KEY_HEADS, KEY_DIM**-0.5, 1.0)
        to = qk + (chunk.to(tl.int64) * 2 * KEY_HEADS + head) * (CHUNK * KEY_DIM)
        tl.store(to + within, (wide * length[:, None]).to(qk.dtype.element_ty), mask=fits)


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
        "sequences": "*i32",
    }
    return [
        KernelSpec(
            name="gdn_conv",
            kernel=_conv_kernel,
            signature={**common, "weight": "*bf16", "chunks": "*i32", "qk": "*bf16", "v": "*bf16"},
            constants={
                "KEY_HEADS": 16,
                "VALUE_HEADS": 32,
                "KEY_DIM": 128,
                "VALUE_DIM": 128,
                "DIM": 128,
                "WIDTH": 4,
                "CHUNK": CHUNK,
            },
            num_warps=_WARPS,
        ),
        KernelSpec(
            name="gdn_conv_columns",
            kernel=_columns_kernel,
            signature={**common, "saves": "*i32"},
            constants={"CHANNELS": 8192, "COLUMNS": 3, "PADDED": 4, "BLOCK": _CHANNELS},
            num_warps=_WARPS,
        ),
    ]
