"""The return path between both halves over real gRPC: a pull in each way it can end, engines
scripted."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tasuki.engine import messages as m
from tasuki.transfer.precision.precision import WirePrecision
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.timeline import Phase
from tasuki.transfer.transports.loopback import Fault

from tests.handover.test_handover_services import quiet
from tests.harness.handover_nodes import PAGES, SLABS, Nodes, grant_of, nodes, on_both_wires
from tests.harness.loopback_pair import expected_page, expected_slot, random_ids
from tests.harness.waiting import HANG_SECONDS

ROOM = 5
PULL_GENERATION = 70


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, HANG_SECONDS))


def third(fault: Fault) -> Callable[[int], Fault]:
    return lambda posted: fault if posted == 3 else Fault.NONE


def source_of(both: Nodes) -> m.PullSource:
    """Where the decode node holds what is pulled."""
    layout = both.pair.target.layout
    pages, slot = random_ids(layout, SLABS, PAGES, np.random.default_rng(3))
    return m.PullSource(m.RoomId(ROOM), pages, slot)


def pull_of(both: Nodes) -> m.PullGrant:
    """Where the prefill node wants it."""
    granted = grant_of(ROOM + 1, both.pair.source.layout)
    return m.PullGrant(
        m.RoomId(ROOM), PULL_GENERATION, 250, granted.first_page, granted.pages, granted.slot
    )


async def asked(both: Nodes) -> m.PullGrant:
    """Up to the ask in the decode engine."""
    await both.connected()
    await both.reserve(ROOM)
    pull = pull_of(both)
    both.service.deliver(m.PullWanted(pull))
    told = await both.decode.wait(m.PullAsked, ROOM)
    assert told == m.PullAsked(m.RoomId(ROOM), pull.tokens, pull.first_page)
    return pull


async def lost_and_fenced(both: Nodes) -> None:
    """The pull ended without a result, in order, and nothing of it is left."""
    await both.prefill.wait(m.PullLost, ROOM)
    await both.prefill.wait(m.PullFenced, ROOM)
    await both.decode.wait(m.PullEnd, ROOM)
    kinds = [type(message) for message in both.prefill.messages]
    assert kinds.index(m.PullLost) < kinds.index(m.PullFenced)
    assert not both.prefill.of(m.PullCommitted)
    async with asyncio.timeout(HANG_SECONDS):
        while both.service._pulls or both.client._pulls or both.pair.back_sender._rooms:
            await asyncio.sleep(0.005)
    assert len(both.prefill.of(m.PullFenced)) == len(both.decode.of(m.PullEnd)) == 1


async def goes_on(both: Nodes) -> None:
    """The room is unharmed: the prompt is computed and handed over."""
    both.service.deliver(m.PrefillAccepted(m.RoomId(ROOM)))
    await both.decode.wait(m.GrantWanted, ROOM)
    both.client.deliver(m.HandoverGranted(grant_of(ROOM, both.pair.target.layout)))
    await both.prefill.wait(m.PrefillStart, ROOM)
    both.compute(ROOM)
    both.say_token(ROOM)
    await both.decode.wait(m.RemoteDone, ROOM)
    await quiet(both)


def assert_in_order(report: m.PullReport) -> None:
    """Both tracks tell the whole pull, each in the order in which it went."""
    assert report.timeline is not None
    giver, puller = report.timeline.sender, report.timeline.receiver
    assert [mark.phase for mark in giver.phases] == [Phase.GRANTED, Phase.ACCEPTED, Phase.DONE]
    assert [mark.phase for mark in puller.phases] == [Phase.GRANTED, Phase.DONE, Phase.VERIFIED]
    for track in (giver, puller):
        times = [mark.at for mark in track.phases]
        assert times == sorted(times) and times[0] >= 0
    assert puller.phases[-1].at == report.seconds
    assert sum(window.bytes for window in giver.windows) == report.bytes
    assert [w.sequence for w in giver.windows] == list(range(len(giver.windows)))
    assert sorted(w.sequence for w in puller.windows) == list(range(len(giver.windows)))
    pinned, done = giver.phases[1].at, giver.phases[2].at
    for window in giver.windows:
        assert pinned <= window.begun_at <= window.posted_at <= window.flushed_at <= done
        assert set(window.layers_finished) == {window.begun_at}
    assert all(window.landed_at <= window.verified_at for window in puller.windows)


def test_the_client_is_told_of_the_pull_when_all_is_done() -> None:
    """Not with the first token, which a client waits for."""

    async def scenario() -> None:
        async with nodes() as both:
            await asked(both)
            both.client.deliver(m.PullPinned(source_of(both)))
            committed = await both.prefill.wait(m.PullCommitted, ROOM)
            assert isinstance(committed, m.PullCommitted)
            both.service.deliver(m.PrefillAccepted(m.RoomId(ROOM)))
            await both.decode.wait(m.GrantWanted, ROOM)
            both.client.deliver(m.HandoverGranted(grant_of(ROOM, both.pair.target.layout)))
            await both.prefill.wait(m.PrefillStart, ROOM)
            both.compute(ROOM)
            both.say_token(ROOM, committed.report)
            ready = await both.decode.wait(m.RemoteReady, ROOM)
            done = await both.decode.wait(m.RemoteDone, ROOM)
            assert isinstance(ready, m.RemoteReady) and isinstance(done, m.RemoteDone)
            assert ready.pulled == replace(committed.report, timeline=None)
            assert done.pull == committed.report.timeline
            await quiet(both)

    run(scenario())


@on_both_wires
def test_a_pull_brings_pages_and_state_and_the_room_goes_on(precision: WirePrecision) -> None:
    async def scenario() -> None:
        async with nodes(precision=precision) as both:
            pull = await asked(both)
            both.pair.target.memory[:] = both.pair.source.memory
            source = source_of(both)
            both.client.deliver(m.PullPinned(source))
            committed = await both.prefill.wait(m.PullCommitted, ROOM)
            assert isinstance(committed, m.PullCommitted)
            layout = both.pair.source.layout
            units = WireUnits.of(layout, precision)
            states = layout.gdn_layers * units.state_layer_bytes
            size = len(pull.pages) * layout.full_layers * units.block_bytes + states
            assert (committed.report.tokens, committed.report.bytes) == (250, size)
            assert_in_order(committed.report)
            for ours, theirs in zip(pull.pages, source.pages, strict=True):
                sent = expected_page(units, both.pair.target, theirs)
                assert both.pair.source.page_bytes(ours) == sent
            sent = expected_slot(units, both.pair.target, source.slot)
            assert both.pair.source.slot_bytes(pull.slot) == sent
            await both.decode.wait(m.PullEnd, ROOM)
            await goes_on(both)
            assert not both.prefill.of(m.PullLost) and not both.prefill.of(m.PullFenced)

    run(scenario())


def test_what_is_here_no_more_is_refused() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await asked(both)
            both.client.deliver(m.PullRefused(m.RoomId(ROOM), "evicted"))
            await lost_and_fenced(both)
            await goes_on(both)

    run(scenario())


@on_both_wires
@pytest.mark.parametrize("fault", [Fault.FLIP_BIT, Fault.LOSE, Fault.REFUSE])
def test_a_fault_on_the_way_costs_the_pull_only(fault: Fault, precision: WirePrecision) -> None:
    async def scenario() -> None:
        async with nodes(back_faults=third(fault), precision=precision) as both:
            await asked(both)
            both.client.deliver(m.PullPinned(source_of(both)))
            await lost_and_fenced(both)
            await goes_on(both)

    run(scenario())


def test_a_pull_that_breaks_on_its_way_is_severed_and_the_next_room_goes_through() -> None:
    """What broke may still land: that is no drain, and both directions share the wire."""

    async def scenario() -> None:
        async with nodes(back_faults=third(Fault.BREAK)) as both:
            await asked(both)
            first = both.client.links[0].connection
            both.client.deliver(m.PullPinned(source_of(both)))
            await lost_and_fenced(both)
            await both.decode.wait(m.HandoverFailed, ROOM)
            await both.prefill.wait(m.PrefillEnd, ROOM)
            async with asyncio.timeout(HANG_SECONDS):
                while both.client.links[0].connection in (None, first):
                    await asyncio.sleep(0.01)
            await both.grant(ROOM + 1)
            both.compute(ROOM + 1)
            both.say_token(ROOM + 1)
            await both.decode.wait(m.RemoteDone, ROOM + 1)
            await quiet(both)

    run(scenario())


def test_a_grant_that_cannot_be_written_is_refused_before_anything_is_posted() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.reserve(ROOM)
            connection = both.client.links[0].connection
            assert connection is not None
            said = []
            fine = pull_of(both)
            for pages, slot, reason in (
                ((10**6,), 0, "is no page"),
                ((1,), 10**6, "is outside"),
                ((-1,), 0, "is no page"),
                (fine.pages[:1], fine.slot, "was not granted"),
            ):
                wrong = m.PullGrant(m.RoomId(ROOM), PULL_GENERATION, 250, 0, pages, slot)
                before = len(both.decode.of(m.PullEnd))
                both.client._begin_pull(wrong, connection, said.append)
                both.client.deliver(m.PullPinned(source_of(both)))
                async with asyncio.timeout(HANG_SECONDS):
                    while len(both.decode.of(m.PullEnd)) == before:
                        await asyncio.sleep(0.002)
                assert reason in said[-1].pull_failed.reason
            assert len(said) == 4
            assert both.pair.target.transport._posted == 0

    run(scenario())


def test_a_client_that_leaves_ends_the_pull_after_its_drain() -> None:
    async def scenario() -> None:
        async with nodes(back_faults=third(Fault.HOLD)) as both:
            await asked(both)
            both.client.deliver(m.PullPinned(source_of(both)))
            async with asyncio.timeout(HANG_SECONDS):
                while not both.pair.fabric.held:
                    await asyncio.sleep(0.002)
            both.client.deliver(m.HandoverCancelled(m.RoomId(ROOM)))
            await both.prefill.wait(m.PullLost, ROOM)
            await both.prefill.wait(m.PrefillEnd, ROOM)
            await asyncio.sleep(0.3)
            assert not both.prefill.of(m.PullFenced), "fenced while a write was in flight"
            assert not both.decode.of(m.PullEnd), "let go while a window was read"
            both.pair.fabric.let_go()
            await lost_and_fenced(both)
            await quiet(both)

    run(scenario())


@pytest.mark.parametrize("pinned", [False, True])
def test_a_client_that_leaves_before_or_while_it_is_pinned(pinned: bool) -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await asked(both)
            both.client.deliver(m.HandoverCancelled(m.RoomId(ROOM)))
            if pinned:
                both.client.deliver(m.PullPinned(source_of(both)))
            await lost_and_fenced(both)
            await quiet(both)

    run(scenario())


def test_a_decode_node_that_goes_away_is_fenced_by_its_lease() -> None:
    async def scenario() -> None:
        async with nodes(back_faults=third(Fault.HOLD)) as both:
            await asked(both)
            both.client.deliver(m.PullPinned(source_of(both)))
            async with asyncio.timeout(HANG_SECONDS):
                while not both.pair.fabric.held:
                    await asyncio.sleep(0.002)
            gone = time.monotonic()
            for task in [*both.client._links._tasks.values(), *both.client._rooms.tasks]:
                task.cancel()
            await both.prefill.wait(m.PullLost, ROOM)
            await both.prefill.wait(m.PullFenced, ROOM)
            assert time.monotonic() - gone > 0.4, "before the lease could have run out"
            assert not both.pair.fabric.held, "fenced by a lease, and not severed"

    run(scenario())


def test_a_pull_of_a_room_that_is_gone_is_answered_at_once() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            both.service.deliver(m.PullWanted(pull_of(both)))
            await both.prefill.wait(m.PullLost, ROOM)
            await both.prefill.wait(m.PullFenced, ROOM)

    run(scenario())


def test_the_writers_lease_is_renewed_by_beats_alone() -> None:
    """Longer than a lease after connecting, a pull still goes through."""

    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await asyncio.sleep(1.3 * both.pair.back_sender.settings.lease_seconds)
            await asked(both)
            both.client.deliver(m.PullPinned(source_of(both)))
            await both.prefill.wait(m.PullCommitted, ROOM)

    run(scenario())
