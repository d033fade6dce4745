"""Windows that travel in fewer bytes, over loopback: what lands is what the codec makes of what was
sent, whatever faults there are; staging is waited for and never leaked."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tasuki.transfer.errors import DigestMismatch, WindowsMissing
from tasuki.transfer.precision.decoding_sink import WindowSink
from tasuki.transfer.precision.encoding_source import EncodingSource
from tasuki.transfer.precision.precision import Precision, WirePrecision
from tasuki.transfer.precision.row_codec import RowFormat
from tasuki.transfer.precision.settings import WireSettings
from tasuki.transfer.precision.staging_buffer import StagingBuffer
from tasuki.transfer.precision.wire_layout import WireError, WireUnits
from tasuki.transfer.sending.outgoing_room import RoomSent
from tasuki.transfer.sending.sender import SenderSettings
from tasuki.transfer.transports.loopback import Fault
from tasuki.transfer.windows.descriptors import layer_bytes
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain
from tasuki.transfer.windows.window import FinishedLayers, WindowHeader

from tests.harness.loopback_pair import (
    FULL,
    GDN,
    POISON,
    Node,
    Pair,
    destination,
    loopback_pair,
    plans,
    random_ids,
    small_layout,
)
from tests.harness.waiting import HANG_SECONDS, until

ROOM, GENERATION = 7, 3
EXACT, BF16, FP8 = Precision.EXACT, Precision.BF16, Precision.FP8
LOSSY = [
    WirePrecision(kv, state)
    for kv in Precision
    for state in Precision
    if (kv, state) != (EXACT,) * 2
]
ALL_FP8 = WirePrecision(FP8, FP8)
NEVER = SenderSettings(lease_seconds=1e9, stall_seconds=1e9)


class CountedCells(StagingBuffer):
    """refused: how often somebody had to wait."""

    refused = 0

    def has_room(self, holder: str) -> bool:
        room = super().has_room(holder)
        self.refused += not room
        return room


def cells_in_use(*nodes: Node) -> int:
    outlets = [node.window_source for node in nodes]
    assert all(isinstance(window_source, EncodingSource) for window_source in outlets)
    return sum(
        window_source.cells.in_use
        for window_source in outlets
        if isinstance(window_source, EncodingSource)
    )


def through(form: RowFormat | None, numbers: bytes) -> bytes:
    """What a receiver has of one unit's float32 rows."""
    if form is None:
        return numbers
    values = torch.frombuffer(bytearray(numbers), dtype=torch.float32)
    values = values.view(1, form.rows, form.width)
    return form.decode(form.encode(values), torch.float32).numpy().tobytes()


def expected_page(units: WireUnits, node: Node, page: int) -> bytes:
    whole, block = node.page_bytes(page), units.layout.block_bytes
    blocks = [whole[i : i + block] for i in range(0, len(whole), block)]
    return b"".join(through(units.kv, block) for block in blocks)


def expected_slot(units: WireUnits, node: Node, slot: int) -> bytes:
    layout, whole = units.layout, node.slot_bytes(slot)
    parts = []
    for start in range(0, len(whole), layout.state_layer_bytes):
        rows = start + layout.conv_bytes
        parts += [
            whole[start:rows],
            through(units.state, whole[rows : start + layout.state_layer_bytes]),
        ]
    return b"".join(parts)


def open_room(
    pair: Pair, pages: int, *, room: int = ROOM, peer: str = "peer", held: int = 0, seed: int = 1
) -> tuple[Destination, tuple[int, ...], int]:
    """(granted, the sender's pages, its slot)."""
    generator = np.random.default_rng(seed)
    layout, slabs = pair.source.layout, pair.source.slabs
    granted = destination(layout, slabs, pages - held, generator, held)
    local, slot = random_ids(layout, slabs, pages, generator)
    pair.receiver.expect(room, GENERATION, granted)
    pair.sender.open(room, GENERATION, peer, granted, pair.ends)
    return granted, local, slot


def assert_decoded(
    pair: Pair, granted: Destination, local: Sequence[int], slot: int, precision: WirePrecision
) -> None:
    units = WireUnits.of(pair.source.layout, precision)
    for index, page in enumerate(granted.pages):
        sent = local[granted.first_page + index]
        assert pair.target.page_bytes(page) == expected_page(units, pair.source, sent)
    assert pair.target.slot_bytes(granted.slot) == expected_slot(units, pair.source, slot)


@settings(max_examples=30, deadline=None)
@given(
    precision=st.sampled_from(LOSSY),
    kinds=st.lists(st.sampled_from([FULL, GDN]), min_size=2, max_size=7).filter(
        lambda kinds: FULL in kinds and GDN in kinds
    ),
    pages=st.integers(1, 9),
    held=st.integers(0, 9),
    chunk=st.integers(1, 5),
    layers_per_window=st.integers(1, 7),
    kept_back=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_lands_is_what_the_codec_makes_of_it_and_nothing_else_is_touched(
    precision: WirePrecision,
    kinds: list,
    pages: int,
    held: int,
    chunk: int,
    layers_per_window: int,
    kept_back: int,
    seed: int,
) -> None:
    layout = small_layout(tuple(kinds))
    units = WireUnits.of(layout, precision)
    # As WireSettings has it: two of the largest unit.
    kept_back = max(kept_back, -(-2 * units.largest_encoded // layout.slab_bytes))
    slabs = 2 + -(-pages // layout.pages_per_slab)
    held = min(held, pages)
    with loopback_pair(
        layout,
        slabs,
        settings=SenderSettings(layers_per_window=layers_per_window),
        seed=seed,
        precision=precision,
        kept_back=kept_back,
    ) as pair:
        before = pair.source.memory[: slabs * layout.slab_bytes].copy()
        granted, local, slot = open_room(pair, pages, held=held, seed=seed)
        pair.run(ROOM, plans(local, slot, chunk))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent), end
        pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)

        assert_decoded(pair, granted, local, slot, precision)
        assert np.array_equal(pair.source.memory[: slabs * layout.slab_bytes], before)
        touched = np.zeros(len(pair.target.memory), dtype=np.bool_)
        for layer, kind in enumerate(kinds):
            for page in granted.pages if kind is FULL else ():
                span = layout.page_span(layer, page)
                touched[span.offset : span.offset + span.length] = True
            if kind is GDN:
                span = layout.state_span(layer, granted.slot)
                touched[span.offset : span.offset + span.length] = True
        assert (pair.target.memory[~touched] == POISON).all()
        blocks, states = (pages - held) * kinds.count(FULL), kinds.count(GDN)
        sent = blocks * units.block_bytes + states * units.state_layer_bytes
        assert end.report.bytes == sent
        assert sent < blocks * layout.block_bytes + layout.slot_bytes or precision.state is EXACT
        assert cells_in_use(pair.source) == 0


def test_the_way_back_is_encoded_too_and_costs_no_further_digit() -> None:
    with loopback_pair(precision=ALL_FP8, kept_back=1) as pair:
        granted, local, slot = open_room(pair, 4)
        pair.run(ROOM, plans(local, slot, 2))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent), end
        pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)
        first = [pair.target.page_bytes(page) for page in granted.pages]

        back = Destination(0, local, slot)
        pair.source.memory[:] = POISON
        pair.back_receiver.expect(8, GENERATION, back)
        pair.back_sender.open(8, GENERATION, "peer", back, pair.ends)
        pair.back_sender.plan_forward(
            8, FinishedLayers.long_finished(0, granted.pages, granted.slot)
        )
        end = pair.ends.wait(8)
        assert isinstance(end, RoomSent), end
        pair.back_receiver.verify(8, GENERATION, end.report.digests, timeout=HANG_SECONDS)
        assert [pair.source.page_bytes(page) for page in local] == first
        assert pair.source.slot_bytes(slot) == pair.target.slot_bytes(granted.slot)
        assert cells_in_use(pair.source, pair.target) == 0


def test_a_layer_opens_only_once_it_is_decoded() -> None:
    with loopback_pair(precision=ALL_FP8, kept_back=1) as pair:
        decoding, go_on = threading.Event(), threading.Event()

        class Slow(WindowSink):
            def decode(self, part: object) -> None:
                decoding.set()
                assert go_on.wait(5)
                super().decode(part)  # type: ignore[arg-type]

        window_sink = pair.target.window_sink
        assert window_sink is not None
        slow = Slow(window_sink._units, window_sink.code, window_sink._codec)
        (arena,) = pair.receiver._arenas
        pair.receiver._arenas = (replace(arena, window_sink=slow),)
        _, local, slot = open_room(pair, 2)
        pair.run(ROOM, plans(local, slot, 2))
        assert decoding.wait(5)
        assert not pair.layer_opens(ROOM, 0, 0.02)
        go_on.set()
        assert pair.layer_opens(ROOM, 0, 5)


def test_after_forget_nothing_of_the_room_is_written_any_more() -> None:
    """Its ids may have another owner at once: the decoder is a writer like any other."""
    whole = SenderSettings(layers_per_window=8)
    with loopback_pair(settings=whole, precision=ALL_FP8, kept_back=1 + 7) as pair:
        decoding, go_on, decoded = threading.Event(), threading.Event(), []

        class Slow(WindowSink):
            def decode(self, part: object) -> None:
                decoding.set()
                assert go_on.wait(5)
                super().decode(part)  # type: ignore[arg-type]
                decoded.append(part)

        window_sink = pair.target.window_sink
        assert window_sink is not None
        slow = Slow(window_sink._units, window_sink.code, window_sink._codec)
        (arena,) = pair.receiver._arenas
        pair.receiver._arenas = (replace(arena, window_sink=slow),)
        _, local, slot = open_room(pair, 2)
        pair.run(ROOM, plans(local, slot, 2))
        assert decoding.wait(5)
        forgetting = threading.Thread(target=pair.receiver.forget, args=(ROOM,))
        forgetting.start()
        forgetting.join(0.05)
        assert forgetting.is_alive(), "forget() returned while a part was being decoded"
        assert isinstance(pair.ends.wait(ROOM), RoomSent)
        go_on.set()
        forgetting.join(5)
        assert not forgetting.is_alive()
        pair.target.memory[:] = POISON
        time.sleep(0.05)
        assert len(decoded) == 1
        assert (pair.target.memory == POISON).all()


@pytest.mark.parametrize("precision", [ALL_FP8, WirePrecision(EXACT, FP8)])
def test_a_flipped_bit_is_found_before_anybody_reads_what_was_decoded(
    precision: WirePrecision,
) -> None:
    def flip(index: int) -> Fault:
        return Fault.FLIP_BIT if index == 3 else Fault.NONE

    with loopback_pair(faults=flip, precision=precision, kept_back=1) as pair:
        _, local, slot = open_room(pair, 4)
        pair.run(ROOM, plans(local, slot, 4))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent), end
        with pytest.raises(DigestMismatch):
            pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)


def test_a_window_that_lands_twice_loses_the_room() -> None:
    """The second landing may lie over what was decoded already."""

    def twice(index: int) -> Fault:
        return Fault.DUPLICATE if index == 3 else Fault.NONE

    with loopback_pair(faults=twice, precision=ALL_FP8, kept_back=1) as pair:
        _, local, slot = open_room(pair, 4)
        pair.run(ROOM, plans(local, slot, 4))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent), end
        until(lambda: pair.receiver.counters.duplicate > 0, "waited in vain")
        with pytest.raises(DigestMismatch, match="came again after it had been decoded"):
            pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)


@pytest.mark.parametrize("code", sorted({0, *(p.code for p in LOSSY)} - {ALL_FP8.code}))
def test_a_window_of_another_precision_is_not_applied(code: int) -> None:
    with loopback_pair(precision=ALL_FP8, kept_back=1) as pair:
        _, local, slot = open_room(pair, 2)
        pair.source.window_source.code = code
        pair.run(ROOM, plans(local, slot, 2))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent), end
        with pytest.raises(WindowsMissing):
            pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=0.2)
        assert pair.receiver.windows_landed(ROOM) == 0
        assert pair.receiver.counters.malformed == end.report.windows


def test_what_comes_after_a_room_was_verified_changes_nothing() -> None:
    """Its pages are the request's own by then."""
    with loopback_pair(precision=ALL_FP8, kept_back=1) as pair:
        _, local, slot = open_room(pair, 2)
        pair.run(ROOM, plans(local, slot, 2))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent), end
        pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)
        before = pair.target.memory.copy()
        again = WindowHeader(end.report.windows, 0, 8, 0, 2, True)
        with pair.fabric.lock:
            mailbox = pair.fabric.nodes["target"].mailbox
            mailbox.append(again.pack(ROOM, GENERATION, ALL_FP8.code))
        until(lambda: pair.receiver.counters.unknown_room > 0, "waited in vain")
        assert np.array_equal(pair.target.memory, before)


def test_an_exact_notification_is_what_it_was_before_there_were_precisions() -> None:
    header = WindowHeader(1, 2, 3, 4, 5, True)
    assert header.pack(6, 7)[-1] == 1
    assert header.pack(6, 7, ALL_FP8.code)[-1] & 1 == 1
    assert WindowHeader.unpack(header.pack(6, 7, ALL_FP8.code), ALL_FP8.code) == (6, 7, header)
    with pytest.raises(ValueError, match="a window is of precision 10, ours is 0"):
        WindowHeader.unpack(header.pack(6, 7, ALL_FP8.code))


def test_rooms_wait_for_staging_and_all_of_them_come_through() -> None:
    layout = small_layout()
    units = WireUnits.of(layout, ALL_FP8)
    rooms = range(1, 7)
    with loopback_pair(layout, 24, settings=NEVER, precision=ALL_FP8, kept_back=1) as pair:
        # Fewer cells than one room may have in flight.
        window_source = pair.source.window_source
        assert isinstance(window_source, EncodingSource)
        unit = units.largest_encoded
        window_source.cells = CountedCells(24 * layout.slab_bytes, 3 * unit, unit)
        pair.source.transport.bytes_per_second = 2e6
        opened = {room: open_room(pair, 4, room=room, seed=room) for room in rooms}
        for room, (_, local, slot) in opened.items():
            pair.run(room, plans(local, slot, 4))
        for room in rooms:
            end = pair.ends.wait(room, timeout=HANG_SECONDS)
            assert isinstance(end, RoomSent), end
        assert window_source.cells.refused > 0
        assert cells_in_use(pair.source) == 0


def test_a_link_that_stands_still_leaves_staging_to_the_others() -> None:
    """Every window of a first peer's rooms is held on the wire; a second peer's room passes it."""

    def held(index: int) -> Fault:
        return Fault.HOLD if stuck.is_set() else Fault.NONE

    stuck = threading.Event()
    stuck.set()
    with loopback_pair(
        slabs=24, faults=held, settings=NEVER, precision=ALL_FP8, kept_back=1
    ) as pair:
        pair.sender.connect("other", [pair.target.address])
        window_source = pair.source.window_source
        assert isinstance(window_source, EncodingSource)
        for room in (1, 3):
            _, local, slot = open_room(pair, 4, room=room, seed=room)
            pair.run(room, plans(local, slot, 2))
        until(lambda: not window_source.cells.has_room("peer"), "waited in vain")
        stuck.clear()
        granted, local, slot = open_room(pair, 4, room=2, peer="other", seed=9)
        pair.run(2, plans(local, slot, 4))
        end = pair.ends.wait(2)
        assert isinstance(end, RoomSent), end
        pair.receiver.verify(2, GENERATION, end.report.digests, timeout=HANG_SECONDS)
        assert_decoded(pair, granted, local, slot, ALL_FP8)
        pair.fabric.let_go()
        for room in (1, 3):
            assert isinstance(pair.ends.wait(room), RoomSent)
        assert window_source.cells.in_use == 0


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
)
def test_windows_fit_their_cells_and_leave_when_their_own_layers_are_finished(
    kinds: list, pages: int, run: int, cells: int, slot: int | None, precision: WirePrecision
) -> None:
    units = WireUnits.of(small_layout(tuple(kinds)), precision)
    unit = units.largest_encoded
    staging = StagingBuffer(0, cells * unit * 3 // 2, unit)
    window_source = EncodingSource(units, 1, None, None, staging)  # type: ignore[arg-type]
    plan = FinishedLayers(100, 7, tuple(range(pages)), slot)
    layers = len(kinds)
    runs = [(first, min(first + run, layers)) for first in range(0, layers, run)]
    windows = window_source.windows(plan, runs, 3)
    assert [window.header.sequence for window in windows] == list(range(3, 3 + len(windows)))
    seen: list[tuple[int, int]] = []
    for window in windows:
        header = window.header
        assert window.tick == 100 + header.end_layer
        assert window.local_pages == plan.local_pages[header.first_page - 7 :][: header.pages]
        assert (window.local_slot, header.carries_state) == (slot, slot is not None)
        span = range(header.first_layer, header.end_layer)
        seen += [(layer, page) for layer in span for page in window.local_pages]
        encoded = sum(
            layer_bytes(units, layer, header.pages, header.carries_state)
            for layer in span
            if units.encoded(layer)
        )
        assert encoded <= staging.cell_bytes
    full = [layer for layer in range(layers) if kinds[layer] is FULL]
    expected = [(layer, page) for layer in full for page in range(pages)]
    assert [pair for pair in seen if pair[0] in full] == expected
    gdn = [
        layer
        for window in windows
        for layer in range(window.header.first_layer, window.header.end_layer)
        if kinds[layer] is GDN
    ]
    assert gdn == [layer for layer in range(layers) if kinds[layer] is GDN]


def test_aborts_leave_no_staging_behind() -> None:
    generator = np.random.default_rng(3)
    kinds = [Fault.NONE, Fault.NONE, Fault.HOLD, Fault.BREAK, Fault.REFUSE, Fault.LOSE]

    def faults(index: int) -> Fault:
        return kinds[generator.integers(len(kinds))] if index % 3 == 0 else Fault.NONE

    settings = SenderSettings(lease_seconds=1e9, stall_seconds=0.05, drain_seconds=0.05)
    with loopback_pair(
        slabs=24, faults=faults, settings=settings, precision=ALL_FP8, kept_back=1
    ) as pair:
        for number in range(40):
            room = 100 + number
            _, local, slot = open_room(pair, 4, room=room, seed=number)
            pair.run(room, plans(local, slot, 2))
            if generator.integers(2):
                time.sleep(float(generator.random()) * 0.003)
            drain = pair.sender.abort(room).result(timeout=HANG_SECONDS)
            assert drain in (Drain.DRAINED, Drain.FORCED)
            pair.receiver.forget(room)
        assert cells_in_use(pair.source) == 0


def test_a_window_that_cannot_be_encoded_ends_its_room_and_frees_its_cell() -> None:
    with loopback_pair(precision=ALL_FP8, kept_back=1) as pair:
        window_source = pair.source.window_source
        assert isinstance(window_source, EncodingSource)

        class Broken:
            def encode(self, layer: int, ids: Sequence[int], offset: int) -> None:
                raise RuntimeError("no memory")

        window_source._codec = Broken()  # type: ignore[assignment]
        _, local, slot = open_room(pair, 4)
        pair.run(ROOM, plans(local, slot, 4))
        end = pair.ends.wait(ROOM)
        assert not isinstance(end, RoomSent)
        assert "no memory" in end.reason
        assert end.drain is Drain.DRAINED
        assert window_source.cells.in_use == 0


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
            wire.slabs_kept_back(units, slabs)
    else:
        assert wire.slabs_kept_back(units, slabs) == kept
    assert WireSettings().slabs_kept_back(WireUnits.of(layout, WirePrecision()), slabs) == 0


@pytest.mark.parametrize(
    ("kv", "state", "mib"), [("fp4", "exact", 1), ("exact", "fp16", 1), ("fp8", "fp8", 0)]
)
def test_settings_that_cannot_be_are_named(kv: str, state: str, mib: int) -> None:
    with pytest.raises(ValueError, match="wire_"):
        WireSettings.named(kv, state, mib)
