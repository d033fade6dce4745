"""Rooms and pulls of fp8 between both halves over real gRPC, engines scripted: what is committed is
what the codec makes of it, and a fault costs the room or the pull and nothing else."""

import asyncio

import pytest
from tasuki.engine import messages as m
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.transports.loopback import Fault

from tests.handover.test_handover_services import quiet
from tests.handover.test_return_path import (
    ROOM,
    asked,
    goes_on,
    lost_and_fenced,
    run,
    source_of,
    third,
)
from tests.harness.handover_nodes import Nodes, grant_of, nodes
from tests.transfer.test_encoded_wire import ALL_FP8, cells_in_use, expected_page, expected_slot


async def nothing_is_left(both: Nodes) -> None:
    await quiet(both)
    assert cells_in_use(both.pair.source, both.pair.target) == 0


def test_a_room_and_its_pull_are_told_in_the_bytes_that_travelled() -> None:
    async def scenario() -> None:
        async with nodes(precision=ALL_FP8) as both:
            source, target = both.pair.source, both.pair.target
            target.memory[:] = source.memory
            units = WireUnits.of(source.layout, ALL_FP8)
            states = source.layout.gdn_layers * units.state_layer_bytes
            page = source.layout.full_layers * units.block_bytes
            pull, held = await asked(both), source_of(both)
            both.client.deliver(m.PullPinned(held))
            committed = await both.prefill.wait(m.PullCommitted, ROOM)
            assert isinstance(committed, m.PullCommitted)
            assert committed.report.bytes == len(pull.pages) * page + states
            for ours, theirs in zip(pull.pages, held.pages, strict=True):
                assert source.page_bytes(ours) == expected_page(units, target, theirs)
            assert source.slot_bytes(pull.slot) == expected_slot(units, target, held.slot)
            await both.decode.wait(m.PullEnd, ROOM)

            granted = grant_of(ROOM, target.layout)
            both.service.deliver(m.PrefillAccepted(m.RoomId(ROOM)))
            await both.decode.wait(m.GrantWanted, ROOM)
            both.client.deliver(m.HandoverGranted(granted))
            await both.prefill.wait(m.PrefillStart, ROOM)
            local, slot = both.compute(ROOM)
            both.say_token(ROOM)
            done = await both.decode.wait(m.RemoteDone, ROOM)
            assert isinstance(done, m.RemoteDone)
            assert done.transfer.bytes == len(local) * page + states
            assert done.transfer.timeline is not None
            told = sum(window.bytes for window in done.transfer.timeline.sender.windows)
            assert told == done.transfer.bytes
            for theirs, ours in zip(granted.pages, local, strict=True):
                assert target.page_bytes(theirs) == expected_page(units, source, ours)
            assert target.slot_bytes(granted.slot) == expected_slot(units, source, slot)
            await nothing_is_left(both)

    run(scenario())


@pytest.mark.parametrize("fault", [Fault.FLIP_BIT, Fault.LOSE, Fault.REFUSE])
def test_a_fault_on_the_way_back_costs_the_pull_only(fault: Fault) -> None:
    async def scenario() -> None:
        async with nodes(back_faults=third(fault), precision=ALL_FP8) as both:
            await asked(both)
            both.client.deliver(m.PullPinned(source_of(both)))
            await lost_and_fenced(both)
            await goes_on(both)
            await nothing_is_left(both)

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault.FLIP_BIT, m.LossCause.DIGEST),
        (Fault.DUPLICATE, m.LossCause.DIGEST),
        (Fault.LOSE, m.LossCause.MISSING),
    ],
)
def test_a_fault_on_the_way_is_never_done_and_the_next_room_is(
    fault: Fault, cause: m.LossCause
) -> None:
    async def scenario() -> None:
        async with nodes(faults=third(fault), precision=ALL_FP8) as both:
            await both.connected()
            await both.grant(ROOM)
            both.compute(ROOM)
            both.say_token(ROOM)
            lost = await both.decode.wait(m.HandoverLost, ROOM)
            assert isinstance(lost, m.HandoverLost)
            assert lost.cause is cause
            await both.decode.wait(m.WriterFenced, ROOM)
            assert not both.decode.of(m.RemoteDone)
            await both.grant(ROOM + 1)
            both.compute(ROOM + 1)
            both.say_token(ROOM + 1)
            await both.decode.wait(m.RemoteDone, ROOM + 1)
            await nothing_is_left(both)

    run(scenario())


def test_a_room_that_is_cancelled_while_it_streams_ends_on_both_sides() -> None:
    async def scenario() -> None:
        async with nodes(faults=third(Fault.HOLD), precision=ALL_FP8) as both:
            await both.connected()
            await both.grant(ROOM)
            both.compute(ROOM)
            both.client.deliver(m.HandoverCancelled(m.RoomId(ROOM)))
            await asyncio.sleep(0.05)
            both.pair.fabric.let_go()
            await both.decode.wait(m.WriterFenced, ROOM)
            await both.prefill.wait(m.PrefillEnd, ROOM)
            await nothing_is_left(both)

    run(scenario())
