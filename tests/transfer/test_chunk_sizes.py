"""Sizes of layer chunks by the cost of the link, learnt from its flushes. Every layer is sent once,
chunks are small if bytes are slow and few if they are fast. Transfers on one link share its
bytes."""

import time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.transfer.chunks.chunk import ChunkHeader, Destination, FinishedLayers
from tasuki.transfer.chunks.descriptors import Segments
from tasuki.transfer.sending.chunk_sizing import budget, chunk_runs, followed_runs, last_runs
from tasuki.transfer.sending.link import Link, LinkCost, LinkSpeed
from tasuki.transfer.sending.outgoing_transfer import FairQueue, OutgoingTransfer
from tasuki.transfer.sending.sender import SenderSettings
from tasuki.transfer.transports.base import Endpoint, Transfer
from tasuki.transfer.transports.loopback import LoopbackTransport
from tests.harness.loopback_pair import FULL, GDN, Pair, loopback_pair, small_layout
from tests.harness.waiting import HANG_SECONDS


def feed(link: LinkCost, sizes: list[int], chunk_seconds: float, byte_seconds: float) -> None:
    """Post layer chunks one after another over a link of this cost."""
    now = 0.0
    for size in sizes:
        link.posted(size)
        begun, now = now, now + chunk_seconds + size * byte_seconds
        link.flushed(size, begun, now)


@given(
    chunk_seconds=st.floats(0, 0.01),
    byte_seconds=st.floats(1e-11, 1e-5),
    small=st.integers(1, 1 << 20),
    factor=st.integers(2, 50),
)
def test_latency_and_speed_are_told_apart(
    chunk_seconds: float, byte_seconds: float, small: int, factor: int
) -> None:
    link = LinkCost()
    assert link.cost is None and link.seconds_for(1) is None
    feed(link, [small, small * factor] * 20, chunk_seconds, byte_seconds)
    assert link.cost is not None and link.cost.spread
    whole = chunk_seconds + small * factor * byte_seconds
    assert link.seconds_for(small * factor) == pytest.approx(whole, rel=0.05)
    assert link.cost.chunk_seconds >= 0 and link.cost.byte_seconds > 0
    assert link.in_flight_bytes == 0


def test_windows_of_one_size_tell_their_mean_alone() -> None:
    link = LinkCost()
    feed(link, [1000] * 10, 0.5, 0.001)
    assert link.cost is not None and not link.cost.spread
    assert link.cost.byte_seconds == pytest.approx(1.5 / 1000)


def test_a_window_in_a_queue_pays_from_the_flush_before_it() -> None:
    link = LinkCost()
    for _ in range(4):
        link.posted(100)
    for now in (1.0, 2.0, 3.0, 4.0):
        link.flushed(100, 0.0, now)
    assert link.seconds_for(100) == pytest.approx(1.0)


def test_a_link_that_became_slow_is_believed_within_some_windows() -> None:
    link = LinkCost()
    feed(link, [1000, 2000] * 20, 0.0, 1e-6)
    feed(link, [1000, 2000] * 40, 0.0, 1e-3)
    assert link.cost is not None and link.cost.byte_seconds > 0.8e-3


def test_what_failed_is_not_in_flight_and_teaches_nothing() -> None:
    link = LinkCost()
    link.posted(10)
    link.posted(20)
    link.gone(20)
    assert link.in_flight_bytes == 10 and link.cost is None
    link.flushed(10, 0.0, 0.0)
    assert link.in_flight_bytes == 0 and link.cost is None


LAYERS = st.lists(st.one_of(st.just(0), st.integers(1, 10_000)), min_size=1, max_size=64)
HYBRID = [0, 0, 0, 100] * 8
STATES = [40, 40, 40, 100] * 8


@given(sizes=LAYERS, most=st.integers(0, 200_000))
def test_every_layer_is_in_exactly_one_window_in_order(sizes: list[int], most: int) -> None:
    for runs in (last_runs(sizes, most), followed_runs(sizes, most)):
        assert [layer for first, end in runs for layer in range(first, end)] == [*range(len(sizes))]
        assert all(first < end for first, end in runs)


@given(sizes=LAYERS, most=st.integers(0, 200_000))
def test_a_forward_that_another_follows_fills_its_windows(sizes: list[int], most: int) -> None:
    runs = followed_runs(sizes, most)
    held = [sum(sizes[first:end]) for first, end in runs]
    for (first, end), size, following in zip(runs, held, [*runs[1:], None], strict=True):
        assert size <= most or sum(1 for layer in sizes[first:end] if layer) == 1
        if following is not None and size:
            taken = next((b for b in sizes[end:] if b), 0)
            assert not taken or size + taken > most, "one more layer had fitted"


@given(sizes=LAYERS, most=st.integers(0, 200_000))
def test_a_window_of_several_layers_is_within_its_bounds(sizes: list[int], most: int) -> None:
    left = sum(sizes)
    for first, end in last_runs(sizes, most):
        size = sum(sizes[first:end])
        several = sum(1 for layer in sizes[first:end] if layer) > 1
        if several:
            before_its_last = size - sizes[end - 1]
            assert size <= most or before_its_last <= most // 2
            assert size <= left // 2
        if size:
            assert sizes[end - 1], "bytes wait for a layer that has none"
        left -= size


@given(sizes=LAYERS, less=st.integers(0, 200_000), more=st.integers(0, 200_000))
def test_a_larger_budget_never_leads_to_more_windows(
    sizes: list[int], less: int, more: int
) -> None:
    less, more = sorted((less, more))
    assert len(last_runs(sizes, 0)) >= len(last_runs(sizes, less))
    assert len(last_runs(sizes, 1 << 40)) <= len(last_runs(sizes, less))


def test_known_cuts() -> None:
    assert last_runs(HYBRID, 0) == [(first, first + 4) for first in range(0, 32, 4)]
    assert last_runs(HYBRID, 1 << 40) == [(0, 16), (16, 24), (24, 28), (28, 32)]
    assert followed_runs(HYBRID, 1 << 40) == [(0, 32)]
    assert followed_runs(HYBRID, 400) == [(0, 16), (16, 32)]
    assert last_runs(STATES, 0) == [(layer, layer + 1) for layer in range(32)]
    assert last_runs([0, 0, 0], 0) == [(0, 3)]
    assert last_runs([5, 0, 0], 0) == [(0, 1), (1, 3)]


def test_where_many_prompts_end_together_windows_are_fewer_and_most_stays_hidden() -> None:
    assert last_runs(STATES, 1 << 40, 1) == last_runs(STATES, 1 << 40)
    runs = last_runs(STATES, 0, 1 << 40)
    assert len(runs) == 4 and sum(STATES[runs[-1][0] :]) <= sum(STATES) // 3
    assert last_runs(STATES, 0, 150)[:3] == [(0, 3), (3, 5), (5, 7)]


@given(sizes=LAYERS, most=st.integers(0, 200_000), least=st.integers(0, 200_000))
def test_a_window_that_many_make_larger_holds_a_third_at_most(
    sizes: list[int], most: int, least: int
) -> None:
    left = sum(sizes)
    runs = last_runs(sizes, most, least)
    assert [layer for first, end in runs for layer in range(first, end)] == [*range(len(sizes))]
    for first, end in runs:
        size = sum(sizes[first:end])
        if sum(1 for layer in sizes[first:end] if layer) > 1:
            assert size <= max(left // 2, min(least, sum(sizes) // 3))
        left -= size


def chunks_of(plan: FinishedLayers, cost: LinkSpeed) -> int:
    return len(chunk_runs(small_layout((GDN, GDN, GDN, FULL) * 8), plan, None, cost))


def test_what_is_long_finished_goes_at_once_and_a_forward_of_many_in_fewer_windows() -> None:
    fast = LinkSpeed(0.0, 1e-11, 1e6, spread=True)
    alone, many = (FinishedLayers(0, 0, (0, 1), 1, ending) for ending in (1, 4))
    assert chunks_of(FinishedLayers.long_finished(0, (0, 1), 1), fast) == 1
    assert 1 < chunks_of(many, fast) < chunks_of(alone, fast)
    slow = LinkSpeed(0.0, 1e-5, 1e6, spread=True)
    assert chunks_of(many, slow) == chunks_of(alone, slow)


def test_small_states_go_along_with_pages_that_fill_a_window() -> None:
    sizes = [2, 100] * 4
    assert last_runs(sizes, 3) == [(layer, layer + 1) for layer in range(8)]
    assert last_runs(sizes, 4) == [(0, 2), (2, 4), (4, 6), (6, 7), (7, 8)]


def test_a_slow_link_has_small_windows_and_a_fast_one_few() -> None:
    def chunks(byte_seconds: float) -> int:
        cost = LinkSpeed(0.0005, byte_seconds, 1e6, spread=True)
        return len(last_runs([size << 15 for size in STATES], budget(cost)))

    slow, middle, fast = chunks(1e-8), chunks(1e-10), chunks(1e-12)
    assert slow == 32 and 6 <= middle < 32 and fast < middle
    assert budget(None) == 0
    assert budget(LinkSpeed(0.0, 1e-9, 1000.0, spread=False)) == 2000


def transfers(count: int) -> list[OutgoingTransfer]:
    nothing = cast(Any, None)
    link = Link(nothing, nothing, nothing, nothing)
    return [
        OutgoingTransfer(i, 1, "peer", Destination(0, (), 0), lambda end: None, link)
        for i in range(count)
    ]


@given(st.lists(st.lists(st.integers(1, 1000), min_size=1), min_size=2, max_size=5))
def test_rooms_that_always_have_a_window_share_by_bytes(sizes: list[list[int]]) -> None:
    everyone = transfers(len(sizes))
    served = [0] * len(sizes)
    turns = FairQueue()
    for _ in range(60):
        transfer = turns.next(everyone)
        index = transfer.transfer_id
        size = sizes[index][served[index] % len(sizes[index])]
        turns.served(transfer, size)
        served[index] += size
    assert max(served) - min(served) <= 1000


def test_an_idle_room_saves_nothing_up() -> None:
    busy, idle = transfers(2)
    turns = FairQueue()
    for _ in range(100):
        turns.served(turns.next([busy]), 10)
    picked = []
    for _ in range(20):
        transfer = turns.next([busy, idle])
        turns.served(transfer, 10)
        picked.append(transfer.transfer_id)
    assert 9 <= picked.count(idle.transfer_id) <= 11


def compute_together(pair: Pair, transfers: tuple[int, ...]) -> None:
    """Compute one forward of all transfers, two pages each."""
    for transfer_id in transfers:
        opened = pair.open(2, transfer_id, seed=transfer_id)
        finished = FinishedLayers(pair.steps.value, 0, opened.pages, opened.slot)
        pair.sender.plan_forward(transfer_id, finished)
    pair.tick()


def test_a_link_that_is_slow_and_moves_never_times_out() -> None:
    """Four transfers share one queue. Each waits for the others longer than the stall limit."""
    settings = SenderSettings(stall_seconds=0.1, lease_seconds=60.0)
    with loopback_pair(settings=settings) as pair:
        pair.source.transport.bytes_per_second = 60e3
        transfers = (1, 2, 3, 4)
        compute_together(pair, transfers)
        began = time.monotonic()
        for transfer_id in transfers:
            pair.sent(transfer_id)
        assert time.monotonic() - began > 5 * settings.stall_seconds


def test_rooms_on_one_slow_link_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire carries layer chunks in the order of their posts. Times would depend on a busy
    machine's polling."""
    posted: list[int] = []
    post = LoopbackTransport.post

    def noted(
        self: LoopbackTransport, endpoint: Endpoint, segments: Segments, notification: bytes
    ) -> Transfer:
        posted.append(ChunkHeader.unpack(notification)[0])
        return post(self, endpoint, segments, notification)

    monkeypatch.setattr(LoopbackTransport, "post", noted)
    with loopback_pair(settings=SenderSettings(lease_seconds=HANG_SECONDS)) as pair:
        pair.source.transport.bytes_per_second = 200e3
        compute_together(pair, (1, 2))
        for transfer_id in (1, 2):
            pair.sent(transfer_id)
    # The layer chunks of both alternate, so neither waited for a whole transfer.
    first, second = (
        [at for at, of in enumerate(posted) if of == transfer_id] for transfer_id in (1, 2)
    )
    assert len(first) == len(second) > 2
    assert first[0] < second[len(second) // 2] and second[0] < first[len(first) // 2]
    assert first[-1] > second[len(second) // 2] and second[-1] > first[len(first) // 2]


@pytest.mark.parametrize("rate", [None, 300e3])
def test_windows_grow_on_a_fast_link_and_stay_small_on_a_slow_one(rate: float | None) -> None:
    settings = SenderSettings(layers_per_window=None, lease_seconds=HANG_SECONDS)
    with loopback_pair(settings=settings) as pair:
        pair.source.transport.bytes_per_second = rate
        layout = pair.source.layout
        counts = []
        # Other processes may delay a fast link, and then fewer layer chunks are better. One
        # undelayed transfer of many is enough.
        for transfer_id in range(1, 25 if rate is None else 5):
            pair.compute(pair.open(4, transfer_id, seed=transfer_id))
            counts.append(pair.verified(transfer_id).report.windows)
        # Two forwards: layer chunks with bytes of each, every layer sent alone.
        alone = len(layout.regions) + len(layout.layers)
        assert counts[0] == alone
        if rate is None:
            assert min(counts) < alone
        else:
            assert max(counts[1:]) >= alone - 2
