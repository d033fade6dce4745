"""Layer chunks posted by the transport itself at their ticks, as the sender handles them. The
transport's part is tested in cpp_cache/dataplane_tests, and on GPUs in tests/gpu."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tasuki.transfer.chunks.digest import ChunkDigester
from tasuki.transfer.reports import Drain, TransferBroke
from tasuki.transfer.sending.sender import SenderSettings
from tasuki.transfer.transports.loopback import Fault, Faults, no_faults
from tests.harness import loopback_pair as loopback_file
from tests.harness.holding_wire import HoldingWire, digests_beside_transfers
from tests.harness.loopback_pair import TRANSFER_ID, Node, Pair, loopback_pair, plans
from tests.harness.waiting import HANG_SECONDS, until

LAYERS = 8
Held = tuple[Pair, HoldingWire]


@contextmanager
def held_pair(
    monkeypatch: pytest.MonkeyPatch,
    faults: Faults = no_faults,
    settings: SenderSettings | None = None,
    slabs: int = 16,
) -> Iterator[Held]:
    made = Node.__post_init__

    def digesting(self: Node) -> None:
        made(self)
        digests_beside_transfers(self.digester)

    monkeypatch.setattr(loopback_file, "LoopbackTransport", HoldingWire)
    monkeypatch.setattr(Node, "__post_init__", digesting)
    with loopback_pair(slabs=slabs, faults=faults, settings=settings) as pair:
        wire = pair.source.transport
        assert isinstance(wire, HoldingWire)
        yield pair, wire


def test_every_window_is_posted_with_its_tick_and_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with held_pair(monkeypatch) as (pair, wire):
        opened = pair.open(pages=7)
        for plan in plans(opened.pages, opened.slot, 2):
            pair.sender.plan_forward(opened.number, plan(pair.steps.value))
            for _ in range(LAYERS):
                # The sender's thread need not run between a tick and a post.
                pair.steps.tick()
                time.sleep(0.001)
        report = pair.verified().report
        pair.assert_arrived(opened)
    assert len(wire.posts) == report.windows == 4 * LAYERS
    assert all(tick <= value for _, tick, value in wire.posts)
    assert [tick for _, tick, _ in wire.posts] == sorted(tick for _, tick, _ in wire.posts)
    for chunk in report.timeline:
        assert chunk.finished <= chunk.begun <= chunk.posted <= chunk.flushed
    assert report.bytes == sum(chunk.bytes for chunk in report.timeline)


def test_what_is_held_of_an_aborted_room_is_never_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_pair(monkeypatch) as (pair, wire):
        opened = pair.open(pages=4)
        other = pair.open(pages=4, transfer_id=8, seed=2)
        for each in (opened, other):
            (plan,) = plans(each.pages, each.slot, 4)
            pair.sender.plan_forward(each.number, plan(pair.steps.value))
        until(lambda: len(wire._held) == 2 * LAYERS, "the windows are not held")
        assert not wire.posts
        drained = pair.sender.abort(TRANSFER_ID, "peer")
        assert drained.result(HANG_SECONDS) is Drain.DRAINED
        pair.tick()
        pair.verified(other.number)
        pair.assert_arrived(other)
        assert {transfer_id for transfer_id, _, _ in wire.posts} == {other.number}
        assert pair.receiver.chunks_arrived(TRANSFER_ID) == 0


def test_a_lease_that_ends_while_windows_are_held_posts_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SenderSettings(lease_seconds=0.8)
    with held_pair(monkeypatch, settings=settings) as (pair, wire):
        opened = pair.open(pages=4)
        (plan,) = plans(opened.pages, opened.slot, 4)
        pair.sender.plan_forward(opened.number, plan(pair.steps.value))

        def all_held() -> bool:
            pair.sender.renew("peer", time.monotonic())
            return len(wire._held) == LAYERS

        until(all_held, "the windows are not held")
        until(lambda: pair.sender._leases.writable("peer") is None, "the lease goes on")
        pair.tick()
        end = pair.ends.wait(opened.number)
        assert isinstance(end, TransferBroke) and end.drain is Drain.DRAINED
        assert "renewed" in end.reason or "lease" in end.reason
        assert not end.endpoint_failed
        assert not wire.posts


def test_a_disconnected_peer_s_windows_are_dropped_and_its_endpoint_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with held_pair(monkeypatch) as (pair, wire):
        opened = pair.open(pages=4)
        (plan,) = plans(opened.pages, opened.slot, 4)
        pair.sender.plan_forward(opened.number, plan(pair.steps.value))
        until(lambda: len(wire._held) == LAYERS, "the windows are not held")
        pair.sender.disconnect("peer")
        end = pair.ends.wait(opened.number)
        assert isinstance(end, TransferBroke) and end.drain is Drain.DRAINED
        until(lambda: not pair.sender.has_endpoint("peer"), "the endpoint stays open")
        pair.tick()
        assert not wire.posts


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.BREAK])
def test_a_held_window_that_fails_ends_its_room_alone(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_pair(monkeypatch, faults=lambda index: fault if index == 3 else Fault.NONE) as (
        pair,
        _,
    ):
        opened = pair.open(pages=4)
        pair.compute(opened, 4)
        end = pair.ends.wait(opened.number)
        assert isinstance(end, TransferBroke) and end.endpoint_failed
        other = pair.open(pages=4, transfer_id=8, seed=2)
        pair.compute(other, 2)
        pair.verified(other.number)
        pair.assert_arrived(other)


def test_a_held_window_that_cannot_be_digested_ends_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest_all = ChunkDigester.digest_all
    with held_pair(monkeypatch) as (pair, _):

        def breaks(self: ChunkDigester, chunks: list) -> list[int]:  # type: ignore[type-arg]
            if self is pair.source.digester:
                raise RuntimeError("no digest")
            return digest_all(self, chunks)

        monkeypatch.setattr(ChunkDigester, "digest_all", breaks)
        opened = pair.open(pages=4)
        pair.compute(opened, 4)
        end = pair.ends.wait(opened.number)
        assert isinstance(end, TransferBroke) and "no digest" in end.reason


def test_no_more_is_held_of_a_room_than_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SenderSettings(lease_seconds=HANG_SECONDS, posted_chunks=3)
    with held_pair(monkeypatch, settings=settings) as (pair, wire):
        opened = pair.open(pages=4)
        (plan,) = plans(opened.pages, opened.slot, 4)
        pair.sender.plan_forward(opened.number, plan(pair.steps.value))
        until(lambda: len(wire._held) == 3, "the windows are not held")
        time.sleep(0.1)
        assert len(wire._held) == 3
        pair.tick()
        pair.verified()
        pair.assert_arrived(opened)
