"""Properties of an inexact wire only: staging with waits and no leaks, and layer chunks of another
precision. Its receiver decodes in place and so is a writer too."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.transfer.chunks.chunk import ChunkHeader, Destination, FinishedLayers
from tasuki.transfer.chunks.descriptors import layer_bytes
from tasuki.transfer.errors import ChunksMissing, DigestMismatch
from tasuki.transfer.precision.encoding_source import EncodingSource, StagingBuffer, slabs_kept_back
from tasuki.transfer.precision.wire_layout import WireError, WireUnits
from tasuki.transfer.receiving.target_arena import ChunkSink
from tasuki.transfer.reports import Drain, TransferBroke
from tasuki.transfer.sending.outgoing_transfer import OutgoingTransfer, Posted
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.settings import Precision, WirePrecision, WireSettings
from tasuki.transfer.transports.loopback import Fault
from tests.harness.loopback_pair import (
    DRAFT,
    FULL,
    GDN,
    GENERATION,
    POISON,
    TRANSFER_ID,
    Pair,
    cells_in_use,
    loopback_pair,
    sent_bytes,
    small_layout,
)
from tests.harness.other_layouts import OTHERS
from tests.harness.waiting import HANG_SECONDS, until
from tests.transfer.test_transfer_path import LOSSY

ALL_FP8 = WirePrecision(Precision.FP8, Precision.FP8)
NEVER = SenderSettings(lease_seconds=1e9, stall_seconds=1e9)
fp8_pair = partial(loopback_pair, precision=ALL_FP8, kept_back=1)


class CountedCells(StagingBuffer):
    """A staging buffer that counts waits. refused: number of checks without space."""

    refused = 0

    def has_room(self, holder: str) -> bool:
        transfer = super().has_room(holder)
        self.refused += not transfer
        return transfer


def encoding_source(pair: Pair) -> EncodingSource:
    source = pair.source.chunk_source
    assert isinstance(source, EncodingSource)
    return source


@dataclass
class SlowSink:
    """The target's decoder, blocked until it is released."""

    plain: ChunkSink
    decoding: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    decoded: list[object] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.plain, name)

    def decode(self, part: object) -> None:
        self.decoding.set()
        assert self.go_on.wait(HANG_SECONDS)
        self.plain.decode(part)  # type: ignore[arg-type]
        self.decoded.append(part)


def slow_sink(pair: Pair) -> SlowSink:
    assert pair.target.chunk_sink is not None
    slow = SlowSink(pair.target.chunk_sink)
    (arena,) = pair.receiver._arenas
    pair.receiver._arenas = (replace(arena, chunk_sink=slow),)
    return slow


def test_the_way_back_is_encoded_too_and_costs_no_further_digit() -> None:
    with fp8_pair() as pair:
        there = pair.hand_over(4)
        pair.verified()
        first = [pair.target.page_bytes(page) for page in there.granted.pages]

        back = Destination(0, there.pages, there.slot)
        pair.source.memory[:] = POISON
        pair.back_receiver.expect(8, GENERATION, back)
        pair.back_sender.open(8, GENERATION, "peer", back, pair.ends)
        finished = FinishedLayers.long_finished(0, there.granted.pages, there.granted.slot)
        pair.back_sender.plan_forward(8, finished)
        digests = pair.sent(8).report.digests
        pair.back_receiver.verify(8, GENERATION, digests, timeout=HANG_SECONDS)
        assert [pair.source.page_bytes(page) for page in there.pages] == first
        assert pair.source.slot_bytes(there.slot) == pair.target.slot_bytes(there.granted.slot)
        assert cells_in_use(pair.source, pair.target) == 0


def test_a_layer_opens_only_once_it_is_decoded() -> None:
    with fp8_pair() as pair:
        slow = slow_sink(pair)
        pair.hand_over(2)
        assert slow.decoding.wait(HANG_SECONDS)
        assert not pair.layer_opens(TRANSFER_ID, 0, 0.02)
        slow.go_on.set()
        assert pair.layer_opens(TRANSFER_ID, 0, HANG_SECONDS)


def test_after_forget_nothing_of_the_room_is_written_any_more() -> None:
    """Its ids may have another owner at once: the decoder is a writer like any other."""
    with fp8_pair(settings=SenderSettings(layers_per_window=8), kept_back=1 + 7) as pair:
        slow = slow_sink(pair)
        pair.hand_over(2)
        assert slow.decoding.wait(HANG_SECONDS)
        forgetting = threading.Thread(target=pair.receiver.forget, args=(TRANSFER_ID,))
        forgetting.start()
        forgetting.join(0.05)
        assert forgetting.is_alive(), "forget() returned while a part was being decoded"
        pair.sent()
        slow.go_on.set()
        forgetting.join(HANG_SECONDS)
        assert not forgetting.is_alive()
        pair.target.memory[:] = POISON
        time.sleep(0.05)
        assert len(slow.decoded) == 1
        assert (pair.target.memory == POISON).all()


def test_a_window_that_lands_twice_loses_the_room() -> None:
    """The second arrival may overwrite bytes already decoded."""
    with fp8_pair(faults=lambda i: Fault.DUPLICATE if i == 3 else Fault.NONE) as pair:
        pair.hand_over(4, chunk=4)
        until(lambda: pair.receiver.counters.duplicate > 0, "waited in vain")
        with pytest.raises(DigestMismatch, match="came again after it had been decoded"):
            pair.verified()


@pytest.mark.parametrize("code", sorted({0, *(p.code for p in LOSSY)} - {ALL_FP8.code}))
def test_a_window_of_another_precision_is_not_applied(code: int) -> None:
    with fp8_pair() as pair:
        pair.source.chunk_source.code = code
        pair.hand_over(2)
        with pytest.raises(ChunksMissing):
            pair.verified(timeout=0.2)
        chunks = pair.sent().report.windows
        until(lambda: pair.receiver.counters.malformed == chunks, "waited in vain")
        assert pair.receiver.chunks_arrived(TRANSFER_ID) == 0


def test_what_comes_after_a_room_was_verified_changes_nothing() -> None:
    """Its pages are the request's own by then."""
    with fp8_pair() as pair:
        pair.hand_over(2)
        chunks = pair.verified().report.windows
        before = pair.target.memory.copy()
        again = ChunkHeader(chunks, 0, 8, 0, 2, True)
        with pair.fabric.lock:
            mailbox = pair.fabric.nodes["target"].mailbox
            mailbox.append(again.pack(TRANSFER_ID, GENERATION, ALL_FP8.code))
        until(lambda: pair.receiver.counters.unknown_room > 0, "waited in vain")
        assert np.array_equal(pair.target.memory, before)


def test_an_exact_notification_is_what_it_was_before_there_were_precisions() -> None:
    header = ChunkHeader(1, 2, 3, 4, 5, True)
    assert header.pack(6, 7)[-1] == 1
    assert header.pack(6, 7, ALL_FP8.code)[-1] & 1 == 1
    assert ChunkHeader.unpack(header.pack(6, 7, ALL_FP8.code), ALL_FP8.code) == (6, 7, header)
    with pytest.raises(ValueError, match="a layer chunk is of precision 10, ours is 0"):
        ChunkHeader.unpack(header.pack(6, 7, ALL_FP8.code))


def test_rooms_wait_for_staging_and_all_of_them_come_through() -> None:
    layout = small_layout()
    unit = WireUnits.of(layout, ALL_FP8).largest_encoded
    with fp8_pair(layout, 24, settings=NEVER) as pair:
        # Fewer cells than one transfer may have in flight.
        cells = CountedCells(24 * layout.slab_bytes, 3 * unit, unit)
        encoding_source(pair).cells = cells
        pair.source.transport.bytes_per_second = 2e6
        opened = [pair.open(4, transfer_id, seed=transfer_id) for transfer_id in range(1, 7)]
        for each in opened:
            pair.compute(each, chunk=4)
        for each in opened:
            pair.sent(each.number)
        assert cells.refused > 0
        assert cells_in_use(pair.source) == 0


def test_a_link_that_stands_still_leaves_staging_to_the_others() -> None:
    """Every layer chunk of a first peer's transfers is held on the wire; a second peer's transfer
    passes it."""

    def held(index: int) -> Fault:
        return Fault.HOLD if stuck.is_set() else Fault.NONE

    stuck = threading.Event()
    stuck.set()
    with fp8_pair(slabs=24, faults=held, settings=NEVER) as pair:
        pair.sender.connect("other", [pair.target.address])
        cells = encoding_source(pair).cells
        for transfer_id in (1, 3):
            pair.compute(pair.open(4, transfer_id, seed=transfer_id))
        until(lambda: not cells.has_room("peer"), "waited in vain")
        stuck.clear()
        passing = pair.open(4, 2, "other", seed=9)
        pair.compute(passing, chunk=4)
        pair.verified(2)
        pair.assert_arrived(passing)
        pair.fabric.let_go()
        for transfer_id in (1, 3):
            pair.sent(transfer_id)
        assert cells.in_use == 0


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from([FULL, GDN]), min_size=2, max_size=9).filter(
        lambda kinds: FULL in kinds and GDN in kinds
    ),
    pages=st.integers(0, 40),
    run=st.integers(1, 9),
    cells=st.integers(2, 8),
    slot=st.sampled_from([None, 5]),
    precision=st.sampled_from(LOSSY),
    drafts=st.booleans(),
)
def test_windows_fit_their_cells_and_leave_when_their_own_layers_are_finished(
    kinds: list,
    pages: int,
    run: int,
    cells: int,
    slot: int | None,
    precision: WirePrecision,
    drafts: bool,
) -> None:
    kinds = kinds + [DRAFT] * drafts
    layout = small_layout(tuple(kinds))
    caches, units = layout.layers, WireUnits.of(layout, precision)
    unit = units.largest_encoded
    staging = StagingBuffer(0, cells * unit * 3 // 2, unit)
    chunk_source = EncodingSource(units, 1, None, None, staging)  # type: ignore[arg-type]
    plan = FinishedLayers(100, 7, tuple(range(pages)), slot)
    layers = len(kinds)
    runs = [(first, min(first + run, layers)) for first in range(0, layers, run)]
    chunks = chunk_source.windows(plan, runs, 3)
    assert [chunk.header.sequence for chunk in chunks] == list(range(3, 3 + len(chunks)))
    sent_pages: list[tuple[int, int]] = []
    sent_states: list[int] = []
    for chunk in chunks:
        header = chunk.header
        assert chunk.tick == 100 + header.end_layer
        assert chunk.local_pages == plan.local_pages[header.first_page - 7 :][: header.pages]
        # A draft layer's carry is sent with the last of its pages.
        later = kinds[header.first_layer] is DRAFT and header.first_page + header.pages < 7 + pages
        own_slot = None if later else slot
        assert (chunk.local_slot, header.carries_state) == (own_slot, own_slot is not None)
        encoded = 0
        for layer in range(header.first_layer, header.end_layer):
            if caches[layer].page:
                sent_pages += [(layer, page) for page in chunk.local_pages]
            if caches[layer].slot and not later:
                sent_states.append(layer)
            if units.form(layer) is not None:
                # A draft layer's carry is no encoded state.
                state = header.carries_state and kinds[layer] is not DRAFT
                encoded += layer_bytes(units, layer, header.pages, state)
        assert encoded <= staging.cell_bytes
    full = [layer for layer in range(layers) if caches[layer].page]
    assert sent_pages == [(layer, page) for layer in full for page in range(pages)]
    assert sent_states == [layer for layer in range(layers) if caches[layer].slot]


def test_a_room_that_is_given_up_is_not_over_before_its_windows_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    release = Sender._release
    quick = SenderSettings(lease_seconds=1e9, stall_seconds=0.05, drain_seconds=0.05)
    with fp8_pair(slabs=24, faults=lambda index: Fault.HOLD, settings=quick) as pair:

        def look_and_release(transfer: OutgoingTransfer, posted: Posted) -> None:
            asked.append(pair.sender.abort(transfer.transfer_id, transfer.peer).done())
            release(transfer, posted)

        monkeypatch.setattr(Sender, "_release", staticmethod(look_and_release))
        pair.compute(pair.open(4, TRANSFER_ID, seed=1))
        until(lambda: bool(asked), "no window was given up")
        assert pair.sender.abort(TRANSFER_ID, "peer").result(timeout=HANG_SECONDS) is Drain.FORCED
        assert not any(asked) and cells_in_use(pair.source) == 0


def test_a_window_that_cannot_be_encoded_ends_its_room_and_frees_its_cell() -> None:
    class Broken:
        def encode(self, layer: int, ids: Sequence[int], offset: int) -> None:
            raise RuntimeError("no memory")

    with fp8_pair() as pair:
        encoding_source(pair)._codec = Broken()  # type: ignore[assignment]
        pair.hand_over(4, chunk=4)
        end = pair.ends.wait(TRANSFER_ID)
        assert isinstance(end, TransferBroke) and "no memory" in end.reason
        assert end.drain is Drain.DRAINED
        assert cells_in_use(pair.source) == 0


@pytest.mark.parametrize(
    ("slabs", "staging_mib", "kept"), [(8, 64, 1), (800, 64, 100), (100_000, 1, 64), (4, 1, None)]
)
def test_how_much_of_an_arena_is_kept_back(slabs: int, staging_mib: int, kept: int | None) -> None:
    layout = small_layout()
    assert layout.slab_bytes == 2**14
    units = WireUnits.of(layout, ALL_FP8)
    wire = WireSettings(ALL_FP8, staging_mib)
    if kept is None:
        with pytest.raises(WireError, match="give more --arena-mib"):
            slabs_kept_back(wire, units, slabs)
    else:
        assert slabs_kept_back(wire, units, slabs) == kept
    assert slabs_kept_back(WireSettings(), WireUnits.of(layout, WirePrecision()), slabs) == 0


@pytest.mark.parametrize(
    ("kv", "state", "mib"), [("fp4", "exact", 1), ("exact", "fp16", 1), ("fp8", "fp8", 0)]
)
def test_settings_that_cannot_be_are_named(kv: str, state: str, mib: int) -> None:
    with pytest.raises(ValueError, match="wire_"):
        WireSettings.named(kv, state, mib)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kv", [Precision.FP8, Precision.EXACT])
def test_only_heads_of_another_family_are_encoded(name: str, kv: Precision) -> None:
    """Whole parts, behind the heads of a block or the matrix of a state, arrive bit for bit."""
    layout = OTHERS[name]
    if not any(region.cache.by_heads for region in layout.regions):
        kv = Precision.EXACT
    precision = WirePrecision(kv, Precision.FP8)
    units = WireUnits.of(layout, precision)
    kept = -(-4 * units.largest_encoded // layout.slab_bytes)
    with loopback_pair(layout, 9, precision=precision, kept_back=kept) as pair:
        opened = pair.open(4, seed=3)
        pair.compute(opened)
        report = pair.verified().report
        pair.assert_arrived(opened)
        assert report.bytes == sent_bytes(units, 4) < sent_bytes(layout, 4)
