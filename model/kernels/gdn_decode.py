"""One token of each of B sequences through a GDN layer, from in_proj's output to out_proj's input.

One launch does the convolution with its state update, SiLU, unit-length q and k, the gates, the
recurrent step on the state and the gated norm. A program owns one value head of one row: it reads
that head's [value_dim, key_dim] state once and writes it once, which is all the traffic that
counts. Twin: `model.torch_operators.TorchOperators.gdn`.

read_slots[i] may be write_slots[i] (in place). No row may read a slot that another row writes. The
kernel before this one in the stream may not write slots or rows: they are read while it still runs.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from ...pycache.kernel_spec import KernelSpec
from ..config import ModelConfig
from ..weights import GdnWeights
from .dependent_launch import dependent, wait_for_inputs
from .gdn_math import sigmoid, silu, softplus


@dataclass(frozen=True)
class Tile:
    """`rows` of state a step of the loop, and so many steps in flight."""

    rows: int
    stages: int
    warps: int


# As measured on an H200: few programs end sooner when each has many threads, and many programs move
# more bytes when they are small, since one's convolution hides behind the others' traffic.
_FEW = Tile(32, 3, 4)
_MANY = Tile(8, 5, 2)
_FEW_PROGRAMS = 256


def gdn_decode(
    projected: Tensor,
    weights: GdnWeights,
    config: ModelConfig,
    conv: Tensor,
    ssm: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    rows: Tensor,
    arrivals: Tensor,
) -> Tensor:
    """[B, value_heads * value_dim] in projected's dtype; rows from rows[0] on are left unwritten.

    projected [B, conv_channels | value_heads * value_dim (z) | value_heads (b) | value_heads (a)],
    any row stride. conv [slots, channels, width - 1] and ssm [slots, value_heads, value_dim,
    key_dim] are views of the arena: dense but for the slot stride. read_slots, write_slots [B]
    and rows [1]: int32, on the device. arrivals: at least B * key_heads int32 zeros, left zero;
    launches that share it must share a stream. Head dimensions are powers of two.
    """
    batch = projected.shape[0]
    output = projected.new_empty(batch, config.value_heads * config.value_dim)
    tile = _FEW if batch * config.value_heads <= _FEW_PROGRAMS else _MANY
    _decode_kernel[(config.value_heads, batch)](
        projected,
        projected.stride(0),
        weights.conv,
        weights.decay_rate,
        weights.dt_bias,
        weights.norm,
        conv,
        conv.stride(0),
        ssm,
        ssm.stride(0),
        read_slots,
        write_slots,
        rows,
        arrivals,
        output,
        config.norm_eps,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        WIDTH=config.conv_width,
        TAPS=triton.next_power_of_2(config.conv_width),
        LINE=_line(ssm.element_size(), config.key_dim),
        BLOCK=min(tile.rows, config.value_dim),
        STAGES=tile.stages,
        **dependent(projected),
        num_warps=tile.warps,
    )
    return output


def _line(element_bytes: int, key_dim: int) -> int:
    """Elements of a 128-byte line of state."""
    return min(128 // element_bytes, key_dim)


@triton.jit
def _window(projected, conv, channel, WIDTH: tl.constexpr, TAPS: tl.constexpr):
    """The last WIDTH inputs of each channel, [..., TAPS]: the stored columns and this token's."""
    tap = tl.arange(0, TAPS)
    stored = tl.load(
        conv + channel[:, :, None] * (WIDTH - 1) + tap[None, None, :],
        mask=tap[None, None, :] < WIDTH - 1,
        other=0.0,
    )
    token = tl.load(projected + channel)
    return tl.where(tap[None, None, :] == WIDTH - 1, token[:, :, None], stored.to(token.dtype))


@triton.jit
def _convolve(window, weight, channel, WIDTH: tl.constexpr, TAPS: tl.constexpr):
    """silu(conv) of a window, rounded as the operator's output is."""
    tap = tl.arange(0, TAPS)
    taps = tl.load(
        weight + channel[:, :, None] * WIDTH + tap[None, None, :],
        mask=tap[None, None, :] < WIDTH,
        other=0.0,
    )
    total = tl.sum(window.to(tl.float32) * taps.to(tl.float32), axis=2)
    return silu(total).to(window.dtype).to(tl.float32)


@triton.jit
def _store_window(conv, window, channel, WIDTH: tl.constexpr, TAPS: tl.constexpr):
    """Moves every input one column towards the past; the oldest falls out."""
    tap = tl.arange(0, TAPS)
    tl.store(
        conv + channel[:, :, None] * (WIDTH - 1) + tap[None, None, :] - 1,
        window.to(conv.dtype.element_ty),
        mask=(tap[None, None, :] >= 1) & (tap[None, None, :] < WIDTH),
    )


@triton.jit
def _decode_kernel(
    projected,
    projected_stride,
    conv_weight,
    decay_rate,
    dt_bias,
    norm,
    conv,
    conv_stride,
    ssm,
    ssm_stride,
    read_slots,
    write_slots,
    rows,
    arrivals,
    output,
    eps,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    LINE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    head = tl.program_id(0)
    row = tl.program_id(1)
    # Asked for together, so that padding is noticed without a second wait.
    count = tl.load(rows)
    read = tl.load(read_slots + row).to(tl.int64)
    write = tl.load(write_slots + row).to(tl.int64)
    wait_for_inputs(DEPENDENT)
    if row >= count:
        return
    RATIO: tl.constexpr = VALUE_HEADS // KEY_HEADS
    LINES: tl.constexpr = KEY_DIM // LINE
    BLOCKS: tl.constexpr = VALUE_DIM // BLOCK
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    key_head = head // RATIO
    line = tl.arange(0, LINES)
    element = tl.arange(0, LINE)
    value = tl.arange(0, BLOCK)
    blocks = tl.arange(0, BLOCKS)[:, None]

    projected += row.to(tl.int64) * projected_stride
    source = conv + read * conv_stride
    target = conv + write * conv_stride
    q_channel = key_head * KEY_DIM + line[:, None] * LINE + element[None, :]
    v_channel = 2 * KEYS + head * VALUE_DIM + blocks * BLOCK + value[None, :]
    q_window = _window(projected, source, q_channel, WIDTH, TAPS)
    k_window = _window(projected, source, q_channel + KEYS, WIDTH, TAPS)
    v_window = _window(projected, source, v_channel, WIDTH, TAPS)
    gates = projected + 2 * KEYS + 2 * VALUES + head
    beta = sigmoid(tl.load(gates).to(tl.float32))
    a = tl.load(gates + VALUE_HEADS).to(tl.float32)
    decay = tl.exp(tl.load(decay_rate + head) * softplus(a + tl.load(dt_bias + head)))
    gate = silu(tl.load(projected + v_channel + VALUES).to(tl.float32))
    gate *= tl.load(norm + blocks * BLOCK + value[None, :])

    q = _convolve(q_window, conv_weight, q_channel, WIDTH, TAPS)
    k = _convolve(k_window, conv_weight, q_channel + KEYS, WIDTH, TAPS)
    v = _convolve(v_window, conv_weight, v_channel, WIDTH, TAPS)
    q *= tl.rsqrt(tl.sum(q * q) + 1e-6) * (KEY_DIM**-0.5)
    k *= tl.rsqrt(tl.sum(k * k) + 1e-6)
    match = tl.sum(k * q)

    # In place, a column must not be overwritten while another thread has it still to read.
    tl.debug_barrier()
    _store_window(target, v_window, v_channel, WIDTH, TAPS)
    if RATIO == 1:
        _store_window(target, q_window, q_channel, WIDTH, TAPS)
        _store_window(target, k_window, q_channel + KEYS, WIDTH, TAPS)
    else:
        # The value heads of a key head share its columns: whoever has read them last moves them.
        counter = arrivals + row * KEY_HEADS + key_head
        if tl.atomic_add(counter, 1) == RATIO - 1:
            _store_window(target, q_window, q_channel, WIDTH, TAPS)
            _store_window(target, k_window, q_channel + KEYS, WIDTH, TAPS)
            tl.store(counter, 0)

    # Three dimensions, so that eight lanes share a line, four lanes take rows, and the lines of a
    # row stand in one thread: a sum over key_dim is mostly adds, and takes 3 shuffles and not 5.
    within = (
        value[:, None, None] * KEY_DIM + line[None, :, None] * LINE + element[None, None, :]
    ) + head * (VALUE_DIM * KEY_DIM)
    old = ssm + read * ssm_stride + within
    new = ssm + write * ssm_stride + within
    out = tl.zeros([BLOCKS, BLOCK], tl.float32)
    for block in tl.range(BLOCKS, num_stages=STAGES):
        state = tl.load(old + block * (BLOCK * KEY_DIM)).to(tl.float32)
        # Both sums are over the old state: S' q = decay (S q) + delta (k . q).
        read_k = tl.sum(tl.sum(state * k[None, :, :], axis=1), axis=1)
        read_q = tl.sum(tl.sum(state * q[None, :, :], axis=1), axis=1)
        here = blocks == block
        delta = beta * (tl.sum(tl.where(here, v, 0.0), axis=0) - decay * read_k)
        state = state * decay + delta[:, None, None] * k[None, :, :]
        tl.store(new + block * (BLOCK * KEY_DIM), state.to(ssm.dtype.element_ty))
        out = tl.where(here, (decay * read_q + delta * match)[None, :], out)

    out *= tl.rsqrt(tl.sum(out * out) / VALUE_DIM + eps) * gate
    to = output + row.to(tl.int64) * VALUES + head * VALUE_DIM + blocks * BLOCK + value[None, :]
    tl.store(to, out.to(output.dtype.element_ty))


def compile_specs() -> list[KernelSpec]:
    """9B, 4B and 35B-A3B: 16 key and 32 value heads of 128, bfloat16 with float32 state."""
    signature = {
        "projected": "*bf16",
        "projected_stride": "i32:16",
        "conv_weight": "*bf16",
        "decay_rate": "*fp32",
        "dt_bias": "*fp32",
        "norm": "*fp32",
        "conv": "*bf16",
        "conv_stride": "i32:16",
        "ssm": "*fp32",
        "ssm_stride": "i32:16",
        "read_slots": "*i32",
        "write_slots": "*i32",
        "rows": "*i32",
        "arrivals": "*i32",
        "output": "*bf16",
        "eps": "fp32",
    }
    shape = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128}
    return [
        KernelSpec(
            name=name,
            kernel=_decode_kernel,
            signature=signature,
            constants={
                **shape,
                "WIDTH": 4,
                "TAPS": 4,
                "LINE": 32,
                "BLOCK": tile.rows,
                "STAGES": tile.stages,
                "DEPENDENT": True,
            },
            num_warps=tile.warps,
        )
        for name, tile in (("gdn_decode", _MANY), ("gdn_decode_few", _FEW))
    ]
