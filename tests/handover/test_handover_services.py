"""Both halves of the hand-over over real gRPC: the happy path, and an end in every phase."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tasuki.decode_node import handover_messages as handover_wire
from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.precision.precision import WirePrecision
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.sending.sender import SenderSettings
from tasuki.transfer.transports.loopback import Fault

from tests.harness.handover_nodes import (
    EXACT,
    FP8,
    HIT,
    LIMITS,
    Nodes,
    grant_of,
    nodes,
    on_both_wires,
    other_weights,
    wanted,
)
from tests.harness.loopback_pair import cells_in_use, expected_page, expected_slot
from tests.harness.waiting import HANG_SECONDS

ROOM = 5


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, HANG_SECONDS))


async def quiet(both: Nodes) -> None:
    """Nothing is left of any room, on either node, nor in the staging of a wire that has one."""
    async with asyncio.timeout(HANG_SECONDS):
        while both.client._rooms or both.service._rooms or both.pair.sender._rooms:
            await asyncio.sleep(0.005)
    if not both.pair.source.precision.exact:
        assert cells_in_use(both.pair.source, both.pair.target) == 0


@on_both_wires
def test_a_room_goes_from_reserve_to_done(precision: WirePrecision) -> None:
    async def scenario() -> None:
        async with nodes(precision=precision) as both:
            await both.connected()
            asked = await both.reserve(ROOM)
            reserve = both.prefill.of(m.PrefillReserve)[0]
            assert reserve.ticket == asked.ticket
            assert (reserve.prompt == asked.prompt).all()
            granted = grant_of(ROOM, both.pair.target.layout)
            both.service.deliver(m.PrefillAccepted(m.RoomId(ROOM)))
            await both.decode.wait(m.GrantWanted)
            both.client.deliver(m.HandoverGranted(granted))
            start = await both.prefill.wait(m.PrefillStart)
            assert start == m.PrefillStart(granted)
            local, slot = both.compute(ROOM)
            both.say_token(ROOM)
            ready = await both.decode.wait(m.RemoteReady)
            assert isinstance(ready, m.RemoteReady)
            assert ready == m.RemoteReady(
                m.RoomId(ROOM), 42, -0.5, 1.25, HIT, "prefill-0", tail_seconds=ready.tail_seconds
            )
            # None where the token was told before the first window was flushed.
            assert ready.tail_seconds is None or ready.tail_seconds >= 0
            done = await both.decode.wait(m.RemoteDone)
            assert isinstance(done, m.RemoteDone)
            source, target = both.pair.source, both.pair.target
            layout, units = source.layout, WireUnits.of(source.layout, precision)
            page = layout.full_layers * units.block_bytes
            states = layout.gdn_layers * units.state_layer_bytes
            assert done.transfer.pages == len(local)
            assert done.transfer.bytes == len(local) * page + states
            if precision.exact:
                assert (page, states) == (layout.page_bytes, layout.slot_bytes)
            assert done.transfer.timeline is not None
            told = sum(window.bytes for window in done.transfer.timeline.sender.windows)
            assert told == done.transfer.bytes
            for theirs, ours in zip(granted.pages, local, strict=True):
                assert target.page_bytes(theirs) == expected_page(units, source, ours)
            assert target.slot_bytes(granted.slot) == expected_slot(units, source, slot)
            await both.prefill.wait(m.PrefillEnd)
            await quiet(both)
            assert not both.decode.of(m.HandoverFailed) and not both.decode.of(m.WriterFenced)
            assert len(both.decode.of(m.RemoteReady)) == 1

    run(scenario())


def test_the_token_may_come_after_the_transfer() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.grant(ROOM)
            both.compute(ROOM)
            await asyncio.sleep(0.1)
            assert not both.decode.of(m.RemoteReady) and not both.decode.of(m.RemoteDone)
            both.say_token(ROOM)
            await both.decode.wait(m.RemoteDone)
            kinds = [type(message) for message in both.decode.messages]
            assert kinds == [m.PeersChanged, m.GrantWanted, m.RemoteReady, m.RemoteDone]

    run(scenario())


def test_done_waits_for_the_last_window() -> None:
    async def scenario() -> None:
        async with nodes(faults=lambda i: Fault.HOLD if i == 3 else Fault.NONE) as both:
            await both.connected()
            await both.grant(ROOM)
            both.compute(ROOM)
            both.say_token(ROOM)
            await both.decode.wait(m.RemoteReady)
            await asyncio.sleep(0.2)
            assert not both.decode.of(m.RemoteDone)
            both.pair.fabric.let_go()
            await both.decode.wait(m.RemoteDone)

    run(scenario())


def test_queued_is_repeated_and_is_not_dead() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.reserve(ROOM)
            await asyncio.sleep(0.5)
            assert not both.decode.of(m.HandoverFailed)
            both.service.deliver(m.PrefillAccepted(m.RoomId(ROOM)))
            await both.decode.wait(m.GrantWanted)

    run(scenario())


def test_many_rooms_at_once() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            for room in range(1, 9):
                await both.grant(room)
            for room in range(1, 9):
                both.compute(room)
                both.say_token(room)
            for room in range(1, 9):
                await both.decode.wait(m.RemoteDone, room)
            await quiet(both)

    run(scenario())


def test_without_a_prefill_node_a_room_is_lost_at_once() -> None:
    async def scenario() -> None:
        async with nodes(decode_contract=other_weights) as both:
            await asyncio.sleep(0.3)
            both.client.deliver(wanted(ROOM))
            lost = await both.decode.wait(m.HandoverFailed)
            assert "no prefill node" in lost.reason
            assert not both.decode.of(m.PeersChanged)

    run(scenario())


def test_a_contract_mismatch_is_refused_with_the_fields_named() -> None:
    async def scenario() -> None:
        async with nodes(decode_contract=other_weights) as both:
            link = both.client.links[0]
            async with asyncio.timeout(HANG_SECONDS):
                while not link.refused:
                    await asyncio.sleep(0.01)
            found = {d.field: (d.ours, d.theirs) for d in link.refused}
            assert found == {
                "weights_digest": ("others", "weights"),
                "tensor_parallel": ("2", "1"),
            }
            assert link.connection is None

    run(scenario())


def test_a_refusal_loses_the_room_without_a_fence() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.reserve(ROOM)
            error = m.RequestError(m.ErrorKind.TOO_LONG, "prompt is too long")
            both.service.deliver(m.PrefillRefused(m.RoomId(ROOM), error))
            lost = await both.decode.wait(m.HandoverFailed)
            assert "too long" in lost.reason
            await quiet(both)
            assert not both.decode.of(m.WriterFenced)

    run(scenario())


@pytest.mark.parametrize(
    ("phase", "precision"),
    [
        *((phase, EXACT) for phase in ("reserve", "accept", "grant", "compute", "token")),
        ("compute", FP8),
    ],
)
def test_a_cancelled_room_ends_on_both_sides(phase: str, precision: WirePrecision) -> None:
    async def scenario() -> None:
        async with nodes(
            faults=lambda i: Fault.HOLD if i == 3 else Fault.NONE, precision=precision
        ) as both:
            await both.connected()
            await {"reserve": both.reserve, "accept": both.accept}.get(phase, both.grant)(ROOM)
            if phase in ("compute", "token"):
                both.compute(ROOM)
                async with asyncio.timeout(HANG_SECONDS):
                    while not both.pair.fabric.held:
                        await asyncio.sleep(0.002)
            if phase == "token":
                both.say_token(ROOM)
                await both.decode.wait(m.RemoteReady)
            both.client.deliver(m.HandoverCancelled(m.RoomId(ROOM)))
            if phase in ("compute", "token"):
                await asyncio.sleep(0.2)
                assert not both.decode.of(m.WriterFenced), "fenced while a write was in flight"
                assert not both.prefill.of(m.PrefillEnd), "let go while a window was read"
                both.pair.fabric.let_go()
            await both.prefill.wait(m.PrefillEnd)
            if phase not in ("reserve", "accept"):
                await both.decode.wait(m.WriterFenced)
            await quiet(both)
            assert not both.decode.of(m.HandoverFailed) and not both.decode.of(m.RemoteDone)
            assert len(both.prefill.of(m.PrefillEnd)) == 1
            assert len(both.decode.of(m.WriterFenced)) <= 1

    run(scenario())


def test_a_declined_grant_ends_the_room() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.accept(ROOM)
            both.client.deliver(m.HandoverDeclined(m.RoomId(ROOM)))
            await both.prefill.wait(m.PrefillEnd)
            await both.decode.wait(m.HandoverFailed)
            await quiet(both)

    run(scenario())


def test_messages_that_cross_a_rooms_end_are_fenced_at_once() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            both.client.deliver(m.HandoverGranted(grant_of(71, both.pair.target.layout)))
            both.client.deliver(m.HandoverCancelled(m.RoomId(72)))
            both.client.deliver(m.HandoverDeclined(m.RoomId(73)))
            await both.decode.wait(m.WriterFenced, 71)
            await both.decode.wait(m.WriterFenced, 72)
            assert not both.decode.of(m.WriterFenced, 73)

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "cause", "reason", "precision"),
    [
        (Fault.FLIP_BIT, m.LossCause.DIGEST, "digest", EXACT),
        (Fault.FLIP_BIT, m.LossCause.DIGEST, "digest", FP8),
        (Fault.LOSE, m.LossCause.MISSING, "not landed", EXACT),
        (Fault.LOSE, m.LossCause.MISSING, "not landed", FP8),
        # Its bytes may lie over what was decoded in place; an exact wire's are the same again.
        (Fault.DUPLICATE, m.LossCause.DIGEST, "", FP8),
    ],
)
def test_a_fault_on_the_way_is_never_done_and_the_next_room_is(
    fault: Fault, cause: m.LossCause, reason: str, precision: WirePrecision
) -> None:
    async def scenario() -> None:
        def third(index: int) -> Fault:
            return fault if index == 3 else Fault.NONE

        async with nodes(faults=third, precision=precision) as both:
            await both.connected()
            await both.grant(ROOM)
            both.compute(ROOM)
            both.say_token(ROOM)
            lost = await both.decode.wait(m.HandoverFailed, ROOM)
            assert isinstance(lost, m.HandoverFailed)
            assert lost.cause is cause and reason in lost.reason
            await both.decode.wait(m.WriterFenced, ROOM)
            assert not both.decode.of(m.RemoteDone)
            await both.grant(ROOM + 1)
            both.compute(ROOM + 1)
            both.say_token(ROOM + 1)
            await both.decode.wait(m.RemoteDone, ROOM + 1)
            await quiet(both)

    run(scenario())


def test_a_broken_transfer_fails_the_room_and_is_drained() -> None:
    async def scenario() -> None:
        async with nodes(faults=lambda i: Fault.BREAK if i == 3 else Fault.NONE) as both:
            await both.connected()
            await both.grant(ROOM)
            both.compute(ROOM)
            lost = await both.decode.wait(m.HandoverFailed)
            assert "loopback" in lost.reason
            await both.decode.wait(m.WriterFenced)
            await both.prefill.wait(m.PrefillEnd)
            await quiet(both)

    run(scenario())


@pytest.mark.parametrize("fault", [Fault.BREAK, Fault.REFUSE])
def test_a_broken_endpoint_is_replaced(fault: Fault) -> None:
    """As after a pause in which the receiver severed its connections: both sides live, and nothing
    that is posted over the old endpoint ever arrives."""

    async def scenario() -> None:
        async with nodes(faults=lambda i: fault if i == 3 else Fault.NONE) as both:
            await both.connected()
            first = both.client.links[0].connection
            await both.grant(ROOM)
            both.compute(ROOM)
            await both.decode.wait(m.HandoverFailed)
            await both.prefill.wait(m.PrefillEnd)
            async with asyncio.timeout(HANG_SECONDS):
                while both.client.links[0].connection in (None, first):
                    await asyncio.sleep(0.01)
            await both.grant(ROOM + 1)
            both.compute(ROOM + 1)
            both.say_token(ROOM + 1)
            await both.decode.wait(m.RemoteDone, ROOM + 1)

    run(scenario())


def test_a_forward_that_breaks_after_the_grant_fails_the_room() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.grant(ROOM)
            error = m.RequestError(m.ErrorKind.INTERNAL, "the forward broke")
            both.service.deliver(m.PrefillRefused(m.RoomId(ROOM), error))
            lost = await both.decode.wait(m.HandoverFailed)
            assert lost.reason == "the forward broke"
            await both.decode.wait(m.WriterFenced)
            await both.prefill.wait(m.PrefillEnd)

    run(scenario())


def test_an_out_of_bounds_grant_is_refused_before_anything_is_posted() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.accept(ROOM)
            both.client.deliver(m.HandoverGranted(m.Grant(m.RoomId(ROOM), 11, 0, (10**6,), 0)))
            lost = await both.decode.wait(m.HandoverFailed)
            assert "1000000" in lost.reason
            await both.decode.wait(m.WriterFenced)
            await both.prefill.wait(m.PrefillEnd)
            assert not both.prefill.of(m.PrefillStart)

    run(scenario())


@pytest.mark.parametrize("phase", ["reserve", "accept", "grant", "compute"])
def test_a_server_that_goes_away_is_noticed_and_fenced_by_its_lease(phase: str) -> None:
    async def scenario() -> None:
        # Its end alone can be what is noticed.
        patient = replace(LIMITS, silence=1000.0)
        async with nodes(
            faults=lambda i: Fault.HOLD if i == 3 else Fault.NONE, limits=patient
        ) as both:
            await both.connected()
            await {"reserve": both.reserve, "accept": both.accept}.get(phase, both.grant)(ROOM)
            if phase == "compute":
                both.compute(ROOM)
            gone = time.monotonic()
            await both.server.stop(0)
            await both.decode.wait(m.HandoverFailed)
            both.pair.fabric.let_go()
            if phase in ("grant", "compute"):
                await both.decode.wait(m.WriterFenced)
                # A lease of 1 s, last renewed shortly before.
                assert time.monotonic() - gone > 0.4, "before the lease could have run out"
            await both.prefill.wait(m.PrefillEnd)
            async with asyncio.timeout(HANG_SECONDS):
                while both.decode.of(m.PeersChanged)[-1] != m.PeersChanged(False):
                    await asyncio.sleep(0.005)
            both.client.deliver(wanted(ROOM + 1))
            await both.decode.wait(m.HandoverFailed, ROOM + 1)
            await quiet(both)

    run(scenario())


def test_a_stuck_connection_is_replaced() -> None:
    async def scenario() -> None:
        quick = SenderSettings(lease_seconds=1.0, stall_seconds=0.2, drain_seconds=0.2)
        async with nodes(faults=lambda i: Fault.HOLD if i == 3 else Fault.NONE, sender=quick) as n:
            await n.connected()
            first = n.client.links[0].connection
            await n.grant(ROOM)
            n.compute(ROOM)
            lost = await n.decode.wait(m.HandoverFailed)
            assert "flushed" in lost.reason
            await n.decode.wait(m.WriterFenced)
            await n.prefill.wait(m.PrefillEnd)
            async with asyncio.timeout(HANG_SECONDS):
                while n.client.links[0].connection in (None, first):
                    await asyncio.sleep(0.01)
            await n.grant(ROOM + 1)
            n.compute(ROOM + 1)
            n.say_token(ROOM + 1)
            await n.decode.wait(m.RemoteDone, ROOM + 1)

    run(scenario())


def test_a_decode_node_that_goes_away_frees_the_prefill_node() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.grant(ROOM)
            await both.reserve(ROOM + 1)
            for task in [*both.client._links._tasks.values(), *both.client._rooms.tasks]:
                task.cancel()
            await both.prefill.wait(m.PrefillEnd, ROOM)
            await both.prefill.wait(m.PrefillEnd, ROOM + 1)
            async with asyncio.timeout(HANG_SECONDS):
                while both.service.receivers:
                    await asyncio.sleep(0.01)

    run(scenario())


class Raw:
    """A receiver that speaks the protocol by hand, to break it."""

    def __init__(self, both: Nodes, channel: grpc.aio.Channel) -> None:
        self.stub = handover_pb2_grpc.HandoverStub(channel)
        assert both.client.links[0].connection is not None
        self.connection = both.client.links[0].connection.id

    def reserve(self, room: int, connection: str | None = None) -> pb.ReceiverMessage:
        return handover_wire.reserve(connection or self.connection, wanted(room))

    async def status(self, first: pb.ReceiverMessage) -> tuple[grpc.StatusCode, str]:
        call = self.stub.Transfer()
        await call.write(first)
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        finally:
            call.cancel()
        raise AssertionError("the call was taken")


def test_what_breaks_the_protocol_is_a_typed_status() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.reserve(ROOM)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel:
                raw = Raw(both, channel)
                code = grpc.StatusCode
                assert (await raw.status(raw.reserve(ROOM)))[0] is code.ALREADY_EXISTS
                unknown = await raw.status(raw.reserve(9, connection="nobody"))
                assert unknown[0] is code.FAILED_PRECONDITION and "Connect" in unknown[1]
                grant = pb.ReceiverMessage(grant=pb.Grant(generation=1))
                assert (await raw.status(grant))[0] is code.INVALID_ARGUMENT
                empty = raw.reserve(9)
                empty.reserve.prompt = b""
                assert "prompt is empty" in (await raw.status(empty))[1]
                empty.reserve.prompt = bytes(6)
                assert "prompt has 6 bytes" in (await raw.status(empty))[1]
                roomless = raw.reserve(9)
                roomless.reserve.ticket.room = 0
                assert "ticket.room" in (await raw.status(roomless))[1]
                hot = raw.reserve(9)
                hot.reserve.ticket.sampling.temperature = -1
                assert "temperature" in (await raw.status(hot))[1]
                for wide in (2**31, 2**32 - 1):
                    keeps = raw.reserve(9)
                    keeps.reserve.ticket.sampling.top_k = wide
                    status, reason = await raw.status(keeps)
                    assert status is code.INVALID_ARGUMENT and "top_k" in reason

    run(scenario())


def test_an_abort_is_idempotent_and_bars_the_room() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.grant(ROOM)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel:
                raw = Raw(both, channel)

                async def abort(room: int, connection: str) -> pb.AbortResponse:
                    request = pb.AbortRequest(room=room, generation=11, connection_id=connection)
                    answer: pb.AbortResponse = await raw.stub.Abort(request, timeout=HANG_SECONDS)
                    return answer

                for _ in range(3):
                    answer = await abort(ROOM, raw.connection)
                    assert answer.drain == pb.DRAIN_DRAINED
                await both.decode.wait(m.HandoverFailed)
                await both.decode.wait(m.WriterFenced)
                await abort(99, raw.connection)
                late = await raw.status(raw.reserve(99))
                assert late[0] is grpc.StatusCode.FAILED_PRECONDITION and "over" in late[1]
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await abort(ROOM, "another-process-1")
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run(scenario())


def test_a_second_grant_or_an_unknown_message_fails_the_room() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel:
                raw = Raw(both, channel)
                for room, message in ((21, pb.Grant(generation=11)), (22, None)):
                    call = raw.stub.Transfer()
                    await call.write(raw.reserve(room))
                    await both.prefill.wait(m.PrefillReserve, room)
                    await call.write(pb.ReceiverMessage(grant=message))
                    while (answer := await call.read()).WhichOneof("message") == "queued":
                        pass
                    assert answer.failed.drain == pb.DRAIN_DRAINED
                    await both.prefill.wait(m.PrefillEnd, room)

    run(scenario())


def test_a_restarted_link_carries_on() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            first = both.client.links[0].connection
            assert first is not None
            first.lost.set()
            async with asyncio.timeout(HANG_SECONDS):
                while both.client.links[0].connection in (None, first):
                    await asyncio.sleep(0.01)
            await both.grant(ROOM)
            both.compute(ROOM)
            both.say_token(ROOM)
            await both.decode.wait(m.RemoteDone)

    run(scenario())
