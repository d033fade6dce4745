"""Every room ends: whatever happens to a stream or to a task, the engine is answered and what was
granted is fenced."""

import asyncio
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tasuki.decode_node.handover_client import HandoverClient
from tasuki.engine import messages as m
from tasuki.prefill_node.handover_service import HandoverService
from tasuki.proto import handover_pb2_grpc
from tasuki.utils.loops.guarded_tasks import GuardedTasks

from tests.handover.test_return_path import source_of
from tests.harness.handover_nodes import LIMITS, Nodes, grant_of, nodes, wanted
from tests.harness.waiting import HANG_SECONDS

ROOM = 5


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, HANG_SECONDS))


async def quiet(both: Nodes) -> None:
    """Nothing is left of any room, on either node."""
    async with asyncio.timeout(HANG_SECONDS):
        while both.client._rooms or both.service._rooms or both.pair.sender._rooms:
            await asyncio.sleep(0.005)


def room_of(side: HandoverClient | HandoverService) -> Any:
    """The one that lives there."""
    (room,) = side._rooms
    return room


@contextmanager
def deaf_server() -> Iterator[str]:
    """The kernel accepts for it and it says nothing: a call's metadata never leaves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


def speak_over(both: Nodes, channel: grpc.aio.Channel) -> None:
    """New rooms of the link open their streams on that channel."""
    connection = both.client.links[0].connection
    assert connection is not None
    connection.stub = handover_pb2_grpc.HandoverStub(channel)


def test_a_room_whose_channel_was_closed_before_it_began_is_lost_at_once() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{both.port}")
            await channel.close()
            speak_over(both, channel)
            both.client.deliver(wanted(ROOM))
            lost = await both.decode.wait(m.HandoverFailed, ROOM)
            assert isinstance(lost, m.HandoverFailed) and "closed" in lost.reason.lower()
            await quiet(both)

    run(scenario())


def test_a_room_whose_first_message_never_leaves_hears_that_its_link_is_lost() -> None:
    async def scenario() -> None:
        with deaf_server() as address:
            async with nodes() as both:
                await both.connected()
                connection = both.client.links[0].connection
                assert connection is not None
                channel = grpc.aio.insecure_channel(address)
                speak_over(both, channel)
                both.client.deliver(wanted(ROOM))
                await asyncio.sleep(0.1)
                connection.lost.set()
                await channel.close()
                await both.decode.wait(m.HandoverFailed, ROOM)
                await quiet(both)

    run(scenario())


def test_a_room_whose_first_message_never_leaves_is_lost_though_its_link_stands() -> None:
    async def scenario() -> None:
        limits = replace(LIMITS, write=0.2)
        with deaf_server() as address:
            async with nodes(limits=limits) as both:
                await both.connected()
                async with grpc.aio.insecure_channel(address) as channel:
                    speak_over(both, channel)
                    both.client.deliver(wanted(ROOM))
                    lost = await both.decode.wait(m.HandoverFailed, ROOM)
                    assert isinstance(lost, m.HandoverFailed) and "took no message" in lost.reason
                    await quiet(both)

    run(scenario())


def test_a_grant_that_never_leaves_is_lost_and_fenced() -> None:
    """The write hangs in the room's middle: its events are taken all the same."""

    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.accept(ROOM)
            stream = room_of(both.client)._stream

            async def hang(*_: object) -> None:
                await asyncio.Event().wait()

            stream._said.get = hang  # type: ignore[assignment, method-assign]
            both.client.deliver(m.HandoverGranted(grant_of(ROOM, both.pair.target.layout)))
            both.client.deliver(m.HandoverCancelled(m.RoomId(ROOM)))
            await both.decode.wait(m.WriterFenced, ROOM)
            await quiet(both)

    run(scenario())


def test_what_breaks_in_a_task_of_a_room_ends_it_and_is_fenced() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()

            def broken(*_: object) -> None:
                raise RuntimeError("the digester is gone")

            both.pair.receiver.verify = broken  # type: ignore[method-assign]
            await both.grant(ROOM)
            both.compute(ROOM)
            both.say_token(ROOM)
            lost = await both.decode.wait(m.HandoverFailed, ROOM)
            assert isinstance(lost, m.HandoverFailed)
            assert lost.cause is m.LossCause.PROTOCOL and "digester" in lost.reason
            await both.decode.wait(m.WriterFenced, ROOM)
            await quiet(both)
            assert len(both.decode.of(m.HandoverFailed)) == len(both.decode.of(m.WriterFenced)) == 1

    run(scenario())


def test_a_room_that_cannot_even_be_opened_is_answered() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()

            def broken(_: m.RequestId) -> str:
                raise RuntimeError("no trace")

            both.client._traceparent = broken
            both.client.deliver(wanted(ROOM))
            lost = await both.decode.wait(m.HandoverFailed, ROOM)
            assert isinstance(lost, m.HandoverFailed) and lost.cause is m.LossCause.PROTOCOL

    run(scenario())


def test_a_room_that_breaks_outside_its_events_is_answered_once_and_fenced() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.grant(ROOM)
            room = room_of(both.client)

            def broken() -> None:
                raise RuntimeError("no next event")

            room._next = broken
            both.say_token(ROOM)
            await both.decode.wait(m.HandoverFailed, ROOM)
            await both.decode.wait(m.WriterFenced, ROOM)
            await quiet(both)
            assert len(both.decode.of(m.HandoverFailed)) == 1

    run(scenario())


def test_a_fence_that_breaks_is_held_again() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.grant(ROOM)
            fence = room_of(both.client).fence
            held, breaks = fence.hold, iter([True])

            async def hold(ask: Any) -> Any:
                if next(breaks, False):
                    raise RuntimeError("no socket could be listed")
                return await held(ask)

            fence.hold = hold  # type: ignore[method-assign]
            both.client.deliver(m.HandoverCancelled(m.RoomId(ROOM)))
            await both.decode.wait(m.WriterFenced, ROOM)
            await quiet(both)

    run(scenario())


@pytest.mark.parametrize("ignores", [False, True], ids=["obeys", "ignores its cancellation"])
def test_tasks_end_in_bounded_time_and_tell_what_they_raised(
    monkeypatch: pytest.MonkeyPatch, ignores: bool
) -> None:
    monkeypatch.setattr("tasuki.utils.loops.guarded_tasks._END_SECONDS", 0.1)

    async def scenario() -> None:
        told: list[Exception] = []
        go = asyncio.Event()
        tasks = GuardedTasks("room-1", told.append)

        async def breaks() -> None:
            raise ValueError("a defect")

        async def waits() -> None:
            while True:
                try:
                    await go.wait()
                    return
                except asyncio.CancelledError:
                    if not ignores:
                        raise

        tasks.start(breaks)
        tasks.start(waits)
        await asyncio.sleep(0.01)
        await tasks.end()
        assert [str(error) for error in told] == ["a defect"]
        go.set()
        await asyncio.sleep(0)

    run(scenario())


def test_a_prefill_nodes_room_that_breaks_beside_its_events_lets_its_engine_go() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.grant(ROOM)

            def broken() -> None:
                raise RuntimeError("no next event")

            room_of(both.service)._next = broken
            both.say_token(ROOM)
            await both.prefill.wait(m.PrefillEnd, ROOM)
            await both.decode.wait(m.HandoverFailed, ROOM)
            await both.decode.wait(m.WriterFenced, ROOM)
            await quiet(both)
            assert len(both.prefill.of(m.PrefillEnd)) == 1

    run(scenario())


@pytest.mark.parametrize("side", ["client", "service"])
def test_a_pull_that_breaks_beside_its_events_ends_on_both_sides(side: str) -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.reserve(ROOM)
            granted = grant_of(ROOM + 1, both.pair.source.layout)
            pull = m.PullGrant(m.RoomId(ROOM), 70, 250, 0, granted.pages, granted.slot)
            both.service.deliver(m.PullWanted(pull))
            await both.decode.wait(m.PullAsked, ROOM)

            def broken() -> None:
                raise RuntimeError("no next event")

            live: Any = both.client._pulls if side == "client" else both.service._pulls
            (broke,) = live
            broke._next = broken
            both.client.deliver(m.PullPinned(source_of(both)))
            await both.prefill.wait(m.PullLost, ROOM)
            await both.prefill.wait(m.PullFenced, ROOM)
            await both.decode.wait(m.PullEnd, ROOM)
            assert not both.prefill.of(m.PullCommitted)

    run(scenario())
