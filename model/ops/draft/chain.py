"""The chain of draft-layer passes (guesses) for several drafts in a row, kept on the device. All
passes are launched before the host learns any draft.

`chain_begin`: a program owns a row. For a row with verified drafts it counts the accepted ones and
begins after the last sampled token. For any other row it begins with the token at the row's batch
index and the hidden state in a slot. `chain_advance`: one program moves all rows on to the drafted
token and stores it at their batch indices. References: reference_chain.py. Both are launched
without overlap, so all work before them has ended.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.kernel_spec import KernelSpec

_ELEMENTS = 8
"""Number of elements for each thread: one load of 16 bytes."""


@dataclass(frozen=True)
class Chain:
    """State of B rows in a chain of drafts, int32 except hidden [B, width]. tokens: the token
    before the next draft, at `positions`. context_lens: number of tokens up to and including it.
    left: number of drafts still wanted. hidden: final hidden state of the token before `tokens`.
    rows [1]: number of valid rows."""

    tokens: Tensor
    hidden: Tensor
    positions: Tensor
    context_lens: Tensor
    left: Tensor
    rows: Tensor


@dataclass(frozen=True)
class ChainStarts:
    """Starting points of the rows of a chain of drafts. places [B] int32: a row's index in the last
    verification, -1 for a row without one. lanes, slots [B] int32: batch index and slot of a row
    without one. last_tokens [lanes]: last token by batch index; carry [slots, width]: hidden state
    by slot.

    The last verification has `width` [1] int32 tokens per row. drawn, ids [rows * width] int32:
    sampled tokens and input tokens. counts [rows]: number of valid tokens. hidden [rows, at least
    width, dim]: final hidden states.
    """

    places: Tensor
    lanes: Tensor
    slots: Tensor
    last_tokens: Tensor
    carry: Tensor
    width: Tensor
    drawn: Tensor
    ids: Tensor
    counts: Tensor
    hidden: Tensor


def chain_begin(chain: Chain, starts: ChainStarts, limit: int) -> None:
    """Begin the chain: fill tokens, hidden and positions. context_lens and left are given for a row
    without an accepted draft, and are moved on by the accepted drafts. limit: number of positions
    of the model."""
    width = chain.hidden.shape[1]
    _begin[(len(chain.tokens),)](
        *(chain.tokens, chain.hidden, chain.positions, chain.context_lens, chain.left, chain.rows),
        *(starts.places, starts.lanes, starts.slots, starts.last_tokens),
        starts.carry,
        starts.carry.stride(0),
        *(starts.width, starts.drawn, starts.ids, starts.counts),
        starts.hidden,
        starts.hidden.shape[1],
        limit,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=_warps(width),
    )


def chain_advance(chain: Chain, lanes: Tensor, drafts: Tensor) -> None:
    """Move the chain on by one draft: store the drafted tokens of the first rows[0] rows in
    drafts[lanes], and prepare the next pass. lanes [B]: batch indices; drafts [lanes] int32, any
    stride."""
    batch = len(chain.tokens)
    _advance[(1,)](
        *(chain.tokens, chain.positions, chain.context_lens, chain.left, chain.rows),
        lanes,
        drafts,
        drafts.stride(0),
        batch,
        BLOCK=triton.next_power_of_2(batch),
        num_warps=1,
    )


def _warps(width: int) -> int:
    warps: int = triton.next_power_of_2(width) // (32 * _ELEMENTS)
    return min(max(warps, 1), 16)


@triton.jit
def _stand(positions, context_lens, left, at, context, wanted, live):
    tl.store(context_lens + at, context, live)
    tl.store(left + at, wanted, live)
    tl.store(positions + at, tl.where(wanted > 0, context - 1, -1), live)


@triton.jit(do_not_specialize=["kept_tokens", "limit"])
def _begin(
    tokens,
    hidden,
    positions,
    context_lens,
    left,
    rows,
    places,
    lanes,
    slots,
    last_tokens,
    carry,
    carry_stride,
    width,
    drawn,
    ids,
    counts,
    kept,
    kept_tokens,
    limit,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    if row >= tl.load(rows):
        return
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = tl.load(places + row)
    held = tl.full([], 0, tl.int32)
    if place >= 0:
        each = tl.load(width)
        count = tl.load(counts + place)
        at = place * each
        token = tl.load(drawn + at)
        going = tl.full([], 1, tl.int32)
        for draft in range(1, count):
            # A draft holds if it equals the sampled token at its place, and all drafts before it
            # hold.
            going = going * (tl.load(ids + at + draft) == token).to(tl.int32)
            held += going
            token = tl.where(going > 0, tl.load(drawn + at + draft), token)
        source = (place.to(tl.int64) * kept_tokens + held) * WIDTH
        values = tl.load(kept + source + column, inside, 0.0)
    else:
        token = tl.load(last_tokens + tl.load(lanes + row))
        source = tl.load(slots + row).to(tl.int64) * carry_stride
        values = tl.load(carry + source + column, inside, 0.0).to(hidden.dtype.element_ty)
    tl.store(tokens + row, token)
    tl.store(hidden + row.to(tl.int64) * WIDTH + column, values, inside)
    context = tl.load(context_lens + row) + held
    wanted = tl.minimum(tl.load(left + row), limit + 1 - context)
    # Every thread must have read the values replaced by the store.
    tl.debug_barrier()
    _stand(positions, context_lens, left, row, context, wanted, True)


@triton.jit(do_not_specialize=["batch", "drafts_stride"])
def _advance(
    tokens,
    positions,
    context_lens,
    left,
    rows,
    lanes,
    drafts,
    drafts_stride,
    batch,
    BLOCK: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    live = row < tl.minimum(batch, tl.load(rows))
    lane = tl.load(lanes + row, live, 0).to(tl.int64)
    tl.store(drafts + lane * drafts_stride, tl.load(tokens + row, live, 0), live)
    wanted = tl.load(left + row, live, 0) - 1
    context = tl.load(context_lens + row, live, 0) + (wanted > 0).to(tl.int32)
    _stand(positions, context_lens, left, row, context, wanted, live)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""
    integers = "tokens positions context_lens left rows"
    starts = "places lanes slots last_tokens width drawn ids counts"
    sizes = {"WIDTH": 4096, "BLOCK": 4096}
    begin = KernelSpec.of(
        "draft_chain_begin", _begin, sizes, _warps(4096), i32=f"{integers} {starts}"
    )
    advance = KernelSpec.of(
        "draft_chain_advance", _advance, {"BLOCK": 64}, 1, i32=f"{integers} lanes drafts"
    )
    return [begin, advance]
