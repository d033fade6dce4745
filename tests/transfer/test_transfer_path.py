"""The whole sending and receiving path over loopback, exact and encoded. Arrived data is the sent
data at the wire's precision. Each fault has its expected outcome."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.transfer.chunks.chunk import ChunkHeader, Destination, FinishedLayers
from tasuki.transfer.errors import (
    ChunksMissing,
    DigestMismatch,
    DuplicateTransfer,
    OutOfBounds,
    PeerUnknown,
)
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.reports import Drain, TransferBroke
from tasuki.transfer.sending.sender import SenderSettings
from tasuki.transfer.settings import Precision, WirePrecision
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
    destination,
    loopback_pair,
    plans,
    random_ids,
    sent_bytes,
    small_layout,
)
from tests.harness.waiting import HANG_SECONDS, until

EXACT = WirePrecision()
LOSSY = [
    WirePrecision(kv, state)
    for kv in Precision
    for state in Precision
    if WirePrecision(kv, state) != EXACT
]
each_wire = pytest.mark.parametrize(
    ("precision", "kept_back"),
    [
        (EXACT, 0),
        (WirePrecision(Precision.FP8, Precision.FP8), 1),
        (WirePrecision(state=Precision.FP8), 1),
    ],
    ids=["exact", "fp8", "fp8 state"],
)


@settings(max_examples=55, deadline=None)
@given(
    precision=st.one_of(st.just(EXACT), st.sampled_from(LOSSY)),
    kinds=st.lists(st.sampled_from([FULL, GDN]), min_size=2, max_size=7).filter(
        lambda kinds: FULL in kinds and GDN in kinds
    ),
    pages=st.integers(1, 9),
    held=st.integers(0, 9),
    chunk=st.integers(1, 5),
    layers_per_window=st.integers(1, 7),
    kept_back=st.integers(1, 3),
    heads=st.integers(1, 2),
    drafts=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_lands_is_what_was_sent_and_nothing_else_is_touched(
    precision: WirePrecision,
    kinds: list,
    pages: int,
    held: int,
    chunk: int,
    layers_per_window: int,
    kept_back: int,
    heads: int,
    drafts: bool,
    seed: int,
) -> None:
    kinds = kinds + [DRAFT] * drafts
    layout = small_layout(tuple(kinds), kv_heads=heads)
    units = WireUnits.of(layout, precision)
    # As in WireSettings: two of the largest unit.
    staged = max(kept_back, -(-2 * units.largest_encoded // layout.slab_bytes))
    slabs = 2 + -(-pages // layout.pages_per_slab)
    held = min(held, pages)
    with loopback_pair(
        layout,
        slabs,
        settings=SenderSettings(layers_per_window=layers_per_window),
        seed=seed,
        precision=precision,
        kept_back=0 if precision.exact else staged,
    ) as pair:
        before = pair.source.memory[: slabs * layout.slab_bytes].copy()
        opened = pair.open(pages, held=held, seed=seed)
        pair.compute(opened, chunk)
        report = pair.verified().report

        pair.assert_arrived(opened)
        assert np.array_equal(pair.source.memory[: slabs * layout.slab_bytes], before)
        touched = np.zeros(len(pair.target.memory), dtype=np.bool_)
        for layer, cache in enumerate(layout.layers):
            spans = []
            if cache.page:
                spans += [layout.page_span(layer, page) for page in opened.granted.pages]
            if cache.slot:
                spans.append(layout.state_span(layer, opened.granted.slot))
            for span in spans:
                touched[span.offset : span.offset + span.length] = True
        assert (pair.target.memory[~touched] == POISON).all()
        blocks = (pages - held) * len(layout.regions)
        assert report.bytes == sent_bytes(units, pages - held)
        assert report.pages == pages - held
        if precision.exact:
            assert report.windows == -(-pages // chunk) * -(-len(kinds) // layers_per_window)
        else:
            plain = blocks * layout.block_bytes + layout.slot_bytes
            assert report.bytes < plain or precision.state is Precision.EXACT
            assert cells_in_use(pair.source) == 0


def test_a_window_leaves_only_after_its_layer_and_the_barrier_sees_it() -> None:
    with loopback_pair() as pair:
        opened = pair.open(2)
        pair.sender.plan_forward(
            TRANSFER_ID, plans(opened.pages, opened.slot, 2)[0](pair.steps.value)
        )
        for layer in range(len(pair.source.layout.layers)):
            assert not pair.layer_opens(TRANSFER_ID, layer, 0.02)
            assert pair.receiver.chunks_arrived(TRANSFER_ID) == layer
            pair.tick(1)
            assert pair.layer_opens(TRANSFER_ID, layer, HANG_SECONDS)
        pair.sent()


def test_the_report_splits_hidden_from_exposed_time() -> None:
    with loopback_pair() as pair:
        pair.hand_over()
        report = pair.sent().report
        assert report.hidden_seconds >= 0 and report.exposed_seconds > 0
        assert [t.sequence for t in report.timeline] == list(range(report.windows))
        assert all(t.finished <= t.begun <= t.flushed for t in report.timeline)


def only(index: int, fault: Fault) -> Callable[[int], Fault]:
    return lambda posted: fault if posted == index else Fault.NONE


@each_wire
@pytest.mark.parametrize(
    ("fault", "error", "named", "patience"),
    [
        (Fault.FLIP_BIT, DigestMismatch, "layer chunk 3 ", 120.0),
        (Fault.LOSE, ChunksMissing, "first 3", 0.1),
    ],
    ids=["a flipped bit", "a lost window"],
)
def test_a_window_that_is_not_as_it_was_sent_is_found(
    fault: Fault,
    error: type[Exception],
    named: str,
    patience: float,
    precision: WirePrecision,
    kept_back: int,
) -> None:
    with loopback_pair(faults=only(3, fault), precision=precision, kept_back=kept_back) as pair:
        pair.hand_over()
        if fault is Fault.LOSE:
            # All data that will come has arrived; only the lost chunk is missing.
            kept = pair.sent().report.windows - 1
            until(lambda: pair.receiver.chunks_arrived(TRANSFER_ID) == kept, "waited in vain")
        with pytest.raises(error, match=named):
            pair.verified(timeout=patience)
        if fault is Fault.LOSE:
            assert not pair.layer_opens(TRANSFER_ID, 3, 0)


def test_duplicates_are_harmless() -> None:
    with loopback_pair(faults=lambda index: Fault.DUPLICATE) as pair:
        pair.hand_over()
        chunks = pair.verified().report.windows
        until(lambda: pair.receiver.counters.duplicate == chunks, "waited in vain")


def assert_broke(pair: Pair, reason: str) -> Drain:
    """Assert that the transfer broke, and return its drain."""
    end = pair.ends.wait(TRANSFER_ID)
    assert isinstance(end, TransferBroke) and reason in end.reason, end
    return end.drain


@pytest.mark.parametrize(
    ("fault", "settings", "reason", "drain"),
    [
        (Fault.REFUSE, None, "loopback", Drain.DRAINED),
        # A broken write may have arrived in part, or still may: this is no drain.
        (Fault.BREAK, None, "loopback", Drain.FORCED),
        # It stalls, and its drain takes too long.
        (Fault.HOLD, SenderSettings(stall_seconds=0.2, drain_seconds=0.1), "flushed", Drain.FORCED),
    ],
    ids=["refused", "broken", "stalled"],
)
def test_a_failed_post_ends_the_room_with_its_reason(
    fault: Fault, settings: SenderSettings | None, reason: str, drain: Drain
) -> None:
    with loopback_pair(faults=only(2, fault), settings=settings) as pair:
        pair.hand_over()
        assert assert_broke(pair, reason) is drain
        assert pair.sender.abort(TRANSFER_ID, "peer").result(HANG_SECONDS) is drain


def test_a_late_write_lands_only_while_the_fence_is_open() -> None:
    """The abort's future is the drain acknowledgement: it must wait for the held write."""
    with loopback_pair(faults=only(3, Fault.HOLD)) as pair:
        first = pair.hand_over().granted.pages[0]
        until(lambda: bool(pair.fabric.held), "waited in vain")
        drained = pair.sender.abort(TRANSFER_ID, "peer")
        time.sleep(0.1)
        assert not drained.done(), "drained while a write was in flight"
        assert pair.sender.abort(TRANSFER_ID, "peer") is drained
        pair.receiver.forget(TRANSFER_ID)
        before = pair.target.page_bytes(first)
        pair.fabric.let_go()
        assert pair.target.page_bytes(first) != before, "the late write did land"
        assert drained.result(HANG_SECONDS) is Drain.DRAINED
        after = pair.target.memory.copy()
        time.sleep(0.05)
        assert (pair.target.memory == after).all(), "a write landed after the acknowledgement"


def test_a_drain_that_takes_too_long_is_not_acknowledged() -> None:
    quick = SenderSettings(drain_seconds=0.1)
    with loopback_pair(faults=only(0, Fault.HOLD), settings=quick) as pair:
        pair.hand_over()
        until(lambda: bool(pair.fabric.held), "waited in vain")
        assert pair.sender.abort(TRANSFER_ID, "peer").result(HANG_SECONDS) is Drain.FORCED
        again = pair.sender.abort(TRANSFER_ID, "peer").result(HANG_SECONDS)
        assert again is Drain.FORCED, "a retry must not say drained"
        # The same number from another peer is another transfer.
        assert pair.sender.abort(TRANSFER_ID, "another").result(HANG_SECONDS) is Drain.DRAINED
        pair.sender.connect("another", [pair.target.address])
        pair.receiver.forget(TRANSFER_ID)
        pair.open(peer="another")


def test_posting_stops_when_the_receiver_does_not_renew_and_never_resumes() -> None:
    with loopback_pair(settings=SenderSettings(lease_seconds=0.15)) as pair:
        opened = pair.open(2)
        pair.sender.plan_forward(
            TRANSFER_ID, plans(opened.pages, opened.slot, 2)[0](pair.steps.value)
        )
        assert_broke(pair, "renewed")
        pair.sender.renew("peer", time.monotonic())
        pair.tick()
        time.sleep(0.05)
        assert (pair.target.memory == POISON).all()


def test_a_renewal_counts_from_when_it_was_asked() -> None:
    with loopback_pair(settings=SenderSettings(lease_seconds=0.2)) as pair:
        asked = time.monotonic()
        pair.open(2)

        def renewed_and_over() -> bool:
            # Counted from its arrival, each would put the end off for ever.
            pair.sender.renew("peer", asked)
            return pair.ends.over(TRANSFER_ID)

        until(renewed_and_over, "the room goes on")


def test_a_room_that_is_held_up_does_not_delay_another() -> None:
    with loopback_pair(faults=lambda index: Fault.HOLD if index < 4 else Fault.NONE) as pair:
        layout = pair.source.layout
        # Transfers alive at once share no ids, because the order of their posts is not fixed.
        other = destination(layout, 8, 5, np.random.default_rng(1))
        taken = {page // layout.blocks_per_slab for page in other.pages} | {other.slot}
        free = [slab for slab in range(8) if slab not in taken]
        ids = tuple(free[0] * layout.blocks_per_slab + k for k in range(2))
        local, slot = random_ids(layout, 8, 2, np.random.default_rng(0))
        pair.sender.open(1, GENERATION, "peer", Destination(0, ids, free[1]), pair.ends)
        # Only the first four layer chunks of the slow transfer are posted, and are held.
        pair.sender.plan_forward(1, plans(local, slot, 2)[0](pair.steps.value))
        pair.tick(4)
        until(lambda: len(pair.fabric.held) == 4, "waited in vain")
        pair.hand_over()
        pair.verified()


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
            pair.sender.open(TRANSFER_ID, GENERATION, "peer", granted, pair.ends)
        with pytest.raises(OutOfBounds, match=named):
            pair.receiver.expect(TRANSFER_ID, GENERATION, granted)
        assert (pair.target.memory == POISON).all()


def test_what_a_sender_cannot_open_is_refused() -> None:
    """Cases: overlapping destinations, an unknown peer, a transfer already open."""
    with loopback_pair() as pair:
        blocks = pair.source.layout.blocks_per_slab
        for granted in (Destination(0, (blocks, blocks), 0), Destination(0, (blocks,), 1)):
            with pytest.raises(OutOfBounds):
                pair.sender.open(TRANSFER_ID, GENERATION, "peer", granted, pair.ends)
        fine = destination(pair.source.layout, 8, 2, np.random.default_rng(0))
        with pytest.raises(PeerUnknown):
            pair.sender.open(TRANSFER_ID, GENERATION, "nobody", fine, pair.ends)
        pair.sender.open(TRANSFER_ID, GENERATION, "peer", fine, pair.ends)
        with pytest.raises(DuplicateTransfer):
            pair.sender.open(TRANSFER_ID, GENERATION, "peer", fine, pair.ends)


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
        pair.open(2)
        local, _ = random_ids(pair.source.layout, 8, pages, np.random.default_rng(1))
        pair.sender.plan_forward(TRANSFER_ID, FinishedLayers(0, first, local, state))
        assert_broke(pair, named)


def test_pages_are_planned_once() -> None:
    with loopback_pair() as pair:
        pair.open(2)
        repeated = plans((pair.source.layout.blocks_per_slab,), 0, 1)[0](0)
        pair.sender.plan_forward(TRANSFER_ID, replace(repeated, state_slot=None))
        pair.sender.plan_forward(TRANSFER_ID, repeated)
        assert_broke(pair, "each once")


def test_notifications_of_no_room_or_an_old_generation_change_nothing() -> None:
    with loopback_pair() as pair:
        pair.open(2)
        header = ChunkHeader(0, 0, 1, 0, 0, True)
        outside = ChunkHeader(1, 0, 99, 0, 0, True)
        pair.fabric.nodes["target"].mailbox.extend(
            [
                header.pack(TRANSFER_ID + 1, GENERATION),
                header.pack(TRANSFER_ID, GENERATION - 1),
                b"noise",
                outside.pack(TRANSFER_ID, GENERATION),
            ]
        )
        counters = pair.receiver.counters
        until(lambda: counters.malformed == 2, "waited in vain")
        assert (counters.unknown_room, counters.stale_generation) == (1, 1)
        assert pair.receiver.chunks_arrived(TRANSFER_ID) == 0
