"""The whole sending and receiving path over loopback: equal bytes, and what each fault leads to."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasuki.transfer.errors import (
    DigestMismatch,
    DuplicateRoom,
    OutOfBounds,
    PeerUnknown,
    WindowsMissing,
)
from tasuki.transfer.sending.outgoing_room import RoomBroke, RoomSent
from tasuki.transfer.sending.sender import SenderSettings
from tasuki.transfer.transports.loopback import Fault
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain
from tasuki.transfer.windows.window import FinishedLayers, WindowHeader

from tests.harness.loopback_pair import (
    FULL,
    GDN,
    POISON,
    Pair,
    destination,
    loopback_pair,
    plans,
    random_ids,
    small_layout,
)
from tests.harness.waiting import HANG_SECONDS, until

ROOM, GENERATION = 7, 3


def hand_over(pair: Pair, pages: int = 5, chunk: int = 2, first: int = 0) -> Destination:
    """Run one room through; the destination that was granted."""
    generator = np.random.default_rng(1)
    layout, slabs = pair.source.layout, pair.source.slabs
    granted = destination(layout, slabs, pages - first, generator, first)
    local, slot = random_ids(layout, slabs, pages, generator)
    pair.receiver.expect(ROOM, GENERATION, granted)
    pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
    pair.run(ROOM, plans(local, slot, chunk))
    return granted


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(st.sampled_from([FULL, GDN]), min_size=2, max_size=7).filter(
        lambda kinds: FULL in kinds and GDN in kinds
    ),
    pages=st.integers(1, 9),
    held=st.integers(0, 9),
    chunk=st.integers(1, 5),
    layers_per_window=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_bytes_are_equal_and_nothing_else_is_touched(
    kinds: list, pages: int, held: int, chunk: int, layers_per_window: int, seed: int
) -> None:
    layout = small_layout(tuple(kinds))
    generator = np.random.default_rng(seed)
    slabs = 2 + -(-pages // layout.pages_per_slab)
    held = min(held, pages)
    with loopback_pair(
        layout, slabs, settings=SenderSettings(layers_per_window=layers_per_window), seed=seed
    ) as pair:
        granted = destination(layout, slabs, pages - held, generator, held)
        local, slot = random_ids(layout, slabs, pages, generator)
        pair.receiver.expect(ROOM, GENERATION, granted)
        pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
        pair.run(ROOM, plans(local, slot, chunk))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent), end
        pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)

        expected = np.full_like(pair.target.memory, POISON)
        for index, page in enumerate(granted.pages):
            assert pair.target.page_bytes(page) == pair.source.page_bytes(local[held + index])
            for layer, kind in enumerate(kinds):
                if kind is FULL:
                    span = layout.page_span(layer, page)
                    expected[span.offset : span.offset + span.length] = 0
        assert pair.target.slot_bytes(granted.slot) == pair.source.slot_bytes(slot)
        for layer, kind in enumerate(kinds):
            if kind is GDN:
                span = layout.state_span(layer, granted.slot)
                expected[span.offset : span.offset + span.length] = 0
        untouched = expected == POISON
        assert (pair.target.memory[untouched] == POISON).all()
        sent = (pages - held) * layout.page_bytes + layout.slot_bytes
        assert end.report.bytes == sent
        assert end.report.pages == pages - held
        assert end.report.windows == -(-pages // chunk) * -(-len(kinds) // layers_per_window)


def test_a_window_leaves_only_after_its_layer_and_the_barrier_sees_it() -> None:
    with loopback_pair() as pair:
        layout = pair.source.layout
        generator = np.random.default_rng(0)
        granted = destination(layout, 8, 2, generator)
        local, slot = random_ids(layout, 8, 2, generator)
        pair.receiver.expect(ROOM, GENERATION, granted)
        pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
        pair.sender.plan_forward(ROOM, plans(local, slot, 2)[0](pair.steps.value))
        for layer in range(len(layout.layer_kinds)):
            assert not pair.layer_opens(ROOM, layer, 0.02)
            assert pair.receiver.windows_landed(ROOM) == layer
            pair.steps.tick()
            assert pair.layer_opens(ROOM, layer, 5)
        assert isinstance(pair.ends.wait(ROOM), RoomSent)


def test_the_report_splits_hidden_from_exposed_time() -> None:
    with loopback_pair() as pair:
        hand_over(pair)
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent)
        report = end.report
        assert report.hidden_seconds >= 0 and report.exposed_seconds > 0
        assert [t.sequence for t in report.timeline] == list(range(report.windows))
        assert all(t.finished <= t.begun <= t.flushed for t in report.timeline)


def only(index: int, fault: Fault) -> Callable[[int], Fault]:
    return lambda posted: fault if posted == index else Fault.NONE


def test_a_flipped_bit_is_found() -> None:
    with loopback_pair(faults=only(3, Fault.FLIP_BIT)) as pair:
        hand_over(pair)
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent)
        with pytest.raises(DigestMismatch, match="window 3 "):
            pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)


def test_a_lost_window_never_verifies() -> None:
    with loopback_pair(faults=only(3, Fault.LOSE)) as pair:
        hand_over(pair)
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent)
        with pytest.raises(WindowsMissing, match="first 3"):
            pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=0.1)
        assert not pair.layer_opens(ROOM, 3, 0)


def test_duplicates_are_harmless() -> None:
    with loopback_pair(faults=lambda index: Fault.DUPLICATE) as pair:
        hand_over(pair)
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent)
        pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)
        windows = end.report.windows
        until(lambda: pair.receiver.counters.duplicate == windows, "waited in vain")


@pytest.mark.parametrize(
    ("fault", "drain"),
    # What broke on its way may have landed in part, or still may: that is no drain.
    [(Fault.REFUSE, Drain.DRAINED), (Fault.BREAK, Drain.FORCED)],
)
def test_a_failed_post_ends_the_room_with_its_reason(fault: Fault, drain: Drain) -> None:
    with loopback_pair(faults=only(2, fault)) as pair:
        hand_over(pair)
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomBroke) and end.drain is drain
        assert "loopback" in end.reason
        assert pair.sender.abort(ROOM).result(1) is drain


def test_a_late_write_lands_only_while_the_fence_is_open() -> None:
    """The abort's future is the drain acknowledgement: it must wait for the held write."""
    with loopback_pair(faults=only(3, Fault.HOLD)) as pair:
        granted = hand_over(pair)
        until(lambda: bool(pair.fabric.held), "waited in vain")
        drained = pair.sender.abort(ROOM)
        time.sleep(0.1)
        assert not drained.done(), "drained while a write was in flight"
        assert pair.sender.abort(ROOM) is drained
        pair.receiver.forget(ROOM)
        before = pair.target.page_bytes(granted.pages[0])
        pair.fabric.let_go()
        assert pair.target.page_bytes(granted.pages[0]) != before, "the late write did land"
        assert drained.result(5) is Drain.DRAINED
        after = pair.target.memory.copy()
        time.sleep(0.05)
        assert (pair.target.memory == after).all(), "a write landed after the acknowledgement"


def test_a_drain_that_takes_too_long_is_not_acknowledged() -> None:
    quick = SenderSettings(drain_seconds=0.1)
    with loopback_pair(faults=only(0, Fault.HOLD), settings=quick) as pair:
        hand_over(pair)
        until(lambda: bool(pair.fabric.held), "waited in vain")
        assert pair.sender.abort(ROOM).result(5) is Drain.FORCED
        assert pair.sender.abort(ROOM).result(5) is Drain.FORCED, "a retry must not say drained"


def test_a_room_that_stalls_breaks_and_is_given_up() -> None:
    quick = SenderSettings(stall_seconds=0.2, drain_seconds=0.1)
    with loopback_pair(faults=only(3, Fault.HOLD), settings=quick) as pair:
        hand_over(pair)
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomBroke) and "flushed" in end.reason
        assert end.drain is Drain.FORCED


def test_posting_stops_when_the_receiver_does_not_renew_and_never_resumes() -> None:
    short = SenderSettings(lease_seconds=0.15)
    with loopback_pair(settings=short) as pair:
        layout = pair.source.layout
        generator = np.random.default_rng(0)
        granted = destination(layout, 8, 2, generator)
        local, slot = random_ids(layout, 8, 2, generator)
        pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
        pair.sender.plan_forward(ROOM, plans(local, slot, 2)[0](pair.steps.value))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomBroke) and "renewed" in end.reason
        pair.sender.renew("peer", time.monotonic())
        for _ in layout.layer_kinds:
            pair.steps.tick()
        time.sleep(0.05)
        assert (pair.target.memory == POISON).all()


def test_a_renewal_counts_from_when_it_was_asked() -> None:
    short = SenderSettings(lease_seconds=0.2)
    with loopback_pair(settings=short) as pair:
        granted = destination(pair.source.layout, 8, 2, np.random.default_rng(0))
        asked = time.monotonic()
        pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)

        def renewed_and_over() -> bool:
            # Counted from its arrival, each would put the end off for ever.
            pair.sender.renew("peer", asked)
            return pair.ends.over(ROOM)

        until(renewed_and_over, "the room goes on")


def test_a_room_that_is_held_up_does_not_delay_another() -> None:
    with loopback_pair(faults=lambda index: Fault.HOLD if index < 4 else Fault.NONE) as pair:
        layout = pair.source.layout
        # Rooms that are alive at once share no ids: whose window is posted first is not said.
        other = destination(layout, 8, 5, np.random.default_rng(1))
        taken = {page // layout.blocks_per_slab for page in other.pages} | {other.slot}
        free = [slab for slab in range(8) if slab not in taken]
        ids = tuple(free[0] * layout.blocks_per_slab + k for k in range(2))
        slow = Destination(0, ids, free[1])
        local, slot = random_ids(layout, 8, 2, np.random.default_rng(0))
        pair.sender.open(1, GENERATION, "peer", slow, pair.ends)
        # Only the first four windows of the slow room go out, and are held.
        pair.sender.plan_forward(1, plans(local, slot, 2)[0](pair.steps.value))
        for _ in range(4):
            pair.steps.tick()
        until(lambda: len(pair.fabric.held) == 4, "waited in vain")
        hand_over(pair)
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomSent)
        pair.receiver.verify(ROOM, GENERATION, end.report.digests, timeout=HANG_SECONDS)


@pytest.mark.parametrize(
    ("granted", "named"),
    [
        (Destination(0, (10**9,), 0), "1000000000"),
        (Destination(0, (-1,), 0), "-1"),
        (Destination(0, (), 8), "slot id 8"),
        (Destination(0, (), -1), "slot id -1"),
        (Destination(-1, (), 0), "first_page -1"),
    ],
)
def test_an_out_of_bounds_grant_is_refused_before_posting(granted: Destination, named: str) -> None:
    with loopback_pair() as pair:
        with pytest.raises(OutOfBounds, match=named):
            pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
        with pytest.raises(OutOfBounds, match=named):
            pair.receiver.expect(ROOM, GENERATION, granted)
        assert (pair.target.memory == POISON).all()


def test_grants_that_overlap_themselves_are_refused() -> None:
    with loopback_pair() as pair:
        blocks = pair.source.layout.blocks_per_slab
        for granted in (Destination(0, (blocks, blocks), 0), Destination(0, (blocks,), 1)):
            with pytest.raises(OutOfBounds):
                pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)


def test_unknown_peers_and_open_rooms_are_refused() -> None:
    with loopback_pair() as pair:
        granted = destination(pair.source.layout, 8, 2, np.random.default_rng(0))
        with pytest.raises(PeerUnknown):
            pair.sender.open(ROOM, GENERATION, "nobody", granted, pair.ends)
        pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
        with pytest.raises(DuplicateRoom):
            pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)


@pytest.mark.parametrize(
    ("first", "pages", "state", "named"),
    [
        (1, 1, None, "lacks pages from 0"),
        (0, 3, None, "page 2 was not granted"),
        (0, 1, 0, "the last plan ends at page 1"),
        (0, 1, 99, "slot id 99"),
    ],
)
def test_a_plan_that_does_not_fit_ends_the_room(
    first: int, pages: int, state: int | None, named: str
) -> None:
    with loopback_pair() as pair:
        layout = pair.source.layout
        granted = destination(layout, 8, 2, np.random.default_rng(0))
        pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
        local, _ = random_ids(layout, 8, pages, np.random.default_rng(1))
        pair.sender.plan_forward(ROOM, FinishedLayers(0, first, local, state))
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomBroke) and named in end.reason


def test_pages_are_planned_once() -> None:
    with loopback_pair() as pair:
        layout = pair.source.layout
        granted = destination(layout, 8, 2, np.random.default_rng(0))
        pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
        repeated = plans((layout.blocks_per_slab,), 0, 1)[0](0)
        pair.sender.plan_forward(ROOM, replace(repeated, state_slot=None))
        pair.sender.plan_forward(ROOM, repeated)
        end = pair.ends.wait(ROOM)
        assert isinstance(end, RoomBroke) and "each once" in end.reason


def test_notifications_of_no_room_or_an_old_generation_change_nothing() -> None:
    with loopback_pair() as pair:
        granted = destination(pair.source.layout, 8, 2, np.random.default_rng(0))
        pair.receiver.expect(ROOM, GENERATION, granted)
        header = WindowHeader(0, 0, 1, 0, 0, True)
        outside = WindowHeader(1, 0, 99, 0, 0, True)
        mailbox = pair.fabric.nodes["target"].mailbox
        mailbox.append(header.pack(ROOM + 1, GENERATION))
        mailbox.append(header.pack(ROOM, GENERATION - 1))
        mailbox.append(b"noise")
        mailbox.append(outside.pack(ROOM, GENERATION))
        counters = pair.receiver.counters
        until(lambda: counters.malformed == 2, "waited in vain")
        assert (counters.unknown_room, counters.stale_generation) == (1, 1)
        assert pair.receiver.windows_landed(ROOM) == 0


def test_stop_drains_what_is_open() -> None:
    with loopback_pair() as pair:
        granted = destination(pair.source.layout, 8, 2, np.random.default_rng(0))
        pair.sender.open(ROOM, GENERATION, "peer", granted, pair.ends)
        drained: Future[Drain] = pair.sender.abort(ROOM)
        assert drained.result(5) is Drain.DRAINED
        assert pair.sender.abort(ROOM).result(0) is Drain.DRAINED
