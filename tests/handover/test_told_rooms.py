"""A gateway's call and a decode node's Reserve find each other in either order, or give up."""

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import numpy as np
import pytest
from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.prefill_node.gateway_rooms import GatewayRooms
from tasuki.prefill_node.handover_room import (
    AbortAsked,
    GatewayArrived,
    GatewayMissing,
    OutgoingHandover,
    RoomEvent,
)
from tasuki.server.auth.caller import ANYBODY, Caller
from tasuki.server.auth.request_context import ANONYMOUS
from tasuki.server.errors import InvalidRequest
from tasuki.transfer.rooms.room import Stopped
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.send_report import Drain

ROOM = m.RoomId(77)
HIT = m.HitBreakdown(3, 0, 0, {"new": 3}, None)
TOKEN = m.PrefillToken(ROOM, 9, -0.5, 1.0, HIT)


class Room:
    """Of a decode node's Reserve, as far as GatewayRooms sees it."""

    def __init__(self, prompt: list[int], room: m.RoomId = ROOM) -> None:
        self.room = room
        self.prompt = np.array(prompt, dtype=np.int32)
        self.heard: list[object] = []

    def put(self, event: object) -> None:
        self.heard.append(event)


def submit(prompt: list[int], request_id: str = "r", room: m.RoomId = ROOM) -> m.Submit:
    told = m.GatewayRoom(room, "127.0.0.1:1")
    tokens = np.array(prompt, dtype=np.int32)
    return m.Submit(m.RequestId(request_id), tokens, SamplingParams(), gateway_room=told)


async def answer(rooms: GatewayRooms, asked: m.Submit) -> list[object]:
    return [event async for event in rooms.generate(asked, ANONYMOUS)]


def run(test: Callable[[GatewayRooms], Awaitable[None]], patience: float = 5.0) -> None:
    async def body() -> None:
        await test(GatewayRooms(patience))

    asyncio.run(body())


def reason(events: list[object]) -> m.FinishReason:
    last = events[-1]
    assert isinstance(last, m.Finished)
    return last.reason


@pytest.mark.parametrize("gateway_first", [True, False])
def test_the_room_starts_when_both_came_and_its_first_token_is_the_answer(
    gateway_first: bool,
) -> None:
    async def test(rooms: GatewayRooms) -> None:
        room = Room([1, 2, 3])
        if not gateway_first:
            rooms.receiver_arrived(room)  # type: ignore[arg-type]
            assert room.heard == []
        call = asyncio.create_task(answer(rooms, submit([1, 2, 3])))
        await asyncio.sleep(0)
        if gateway_first:
            rooms.receiver_arrived(room)  # type: ignore[arg-type]
        assert room.heard == [GatewayArrived()]
        rooms.first_token(ROOM, TOKEN)
        events = await call
        assert isinstance(events[0], m.TokenOut) and events[0].token == 9
        last = events[-1]
        assert isinstance(last, m.Finished) and last.usage.hit == HIT
        assert reason(events) is m.FinishReason.LENGTH
        rooms.over(room)  # type: ignore[arg-type]

    run(test)


def test_a_call_whose_decode_node_never_comes_ends_without_an_error() -> None:
    async def test(rooms: GatewayRooms) -> None:
        assert reason(await answer(rooms, submit([1]))) is m.FinishReason.ABORT
        # The room is forgotten, so that a retry of the gateway may use it.
        assert reason(await answer(rooms, submit([1]))) is m.FinishReason.ABORT

    run(test, patience=0.05)


def test_a_reserve_whose_gateway_never_calls_is_told_so() -> None:
    async def test(rooms: GatewayRooms) -> None:
        room = Room([1])
        rooms.receiver_arrived(room)  # type: ignore[arg-type]
        await asyncio.sleep(0.2)
        assert room.heard == [GatewayMissing()]
        rooms.over(room)  # type: ignore[arg-type]

    run(test, patience=0.05)


def test_a_room_that_is_lost_ends_its_call_and_an_abort_does_too() -> None:
    async def test(rooms: GatewayRooms) -> None:
        room = Room([1])
        call = asyncio.create_task(answer(rooms, submit([1])))
        await asyncio.sleep(0)
        rooms.receiver_arrived(room)  # type: ignore[arg-type]
        rooms.over(room)  # type: ignore[arg-type]
        assert reason(await call) is m.FinishReason.ABORT
        parked = asyncio.create_task(answer(rooms, submit([1], "other", m.RoomId(78))))
        await asyncio.sleep(0)
        rooms.abort(m.RequestId("other"), Caller("somebody else"))
        await asyncio.sleep(0)
        assert not parked.done(), "it is another caller's"
        rooms.abort(m.RequestId("other"), ANYBODY)
        assert reason(await parked) is m.FinishReason.ABORT

    run(test)


def test_another_prompt_and_a_room_used_twice_are_refused() -> None:
    async def test(rooms: GatewayRooms) -> None:
        room = Room([1, 2])
        call = asyncio.create_task(answer(rooms, submit([1, 3])))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="bootstrap_room"):
            await answer(rooms, submit([1, 3], "second"))
        rooms.receiver_arrived(room)  # type: ignore[arg-type]
        assert isinstance(room.heard[0], Stopped)
        assert reason(await call) is m.FinishReason.ABORT
        untold = m.Submit(m.RequestId("u"), np.ones(1, dtype=np.int32), SamplingParams())
        with pytest.raises(InvalidRequest, match="kv_bootstrap_info"):
            await answer(rooms, untold)

    run(test)


def test_a_gateway_that_leaves_gives_its_room_back() -> None:
    async def test(rooms: GatewayRooms) -> None:
        call = asyncio.create_task(answer(rooms, submit([1])))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        room = Room([1])
        rooms.receiver_arrived(room)  # type: ignore[arg-type]
        assert room.heard == []
        again = asyncio.create_task(answer(rooms, submit([1])))
        await asyncio.sleep(0)
        assert room.heard == [GatewayArrived()]
        rooms.over(room)  # type: ignore[arg-type]
        assert reason(await again) is m.FinishReason.ABORT

    run(test)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (GatewayMissing(), "failed"),
        (AbortAsked(), "aborted"),
        (Stopped("the node shuts down"), "failed"),
    ],
)
def test_a_parked_room_ends_without_having_asked_the_engine(event: RoomEvent, said: str) -> None:
    async def body() -> None:
        posted: list[m.Inbox] = []
        ticket = m.Ticket(ROOM, 1, 0, SamplingParams(), b"")
        room = OutgoingHandover(
            m.PrefillReserve(ticket, np.ones(3, dtype=np.int32)),
            "connection",
            posted.append,
            Mock(spec=Sender),
            0.01,
            Mock(),
            awaits_gateway=True,
        )
        running = asyncio.create_task(room.run())
        # Nothing is computed, however long it takes.
        await asyncio.sleep(0.05)
        assert not posted
        room.put(event)
        await running
        message = room.outgoing.get_nowait()
        assert message is not None and message.WhichOneof("message") == said
        assert room.outgoing.get_nowait() is None
        assert posted == [m.PrefillEnd(ROOM)] and room.ended.result() is Drain.DRAINED

    asyncio.run(body())
