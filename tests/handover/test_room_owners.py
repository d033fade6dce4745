"""A room belongs to the connection that it was reserved on: no other one ends it, learns how it
ended, or is barred by it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest
from tasuki.decode_node import handover_messages as handover_wire
from tasuki.engine import messages as m
from tasuki.prefill_node.ended_rooms import EndedRooms
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.protocol.messages import node_to_wire
from tasuki.transfer.transports.loopback import LoopbackTransport
from tasuki.transfer.windows.send_report import Drain

from tests.harness.handover_nodes import GENERATION, Nodes, nodes, wanted
from tests.harness.waiting import HANG_SECONDS

ROOM = 5


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, HANG_SECONDS))


class Stranger:
    """Another decode node, by hand: connected, and beating so that its connection lives."""

    def __init__(self, both: Nodes, channel: grpc.aio.Channel) -> None:
        self.stub = handover_pb2_grpc.HandoverStub(channel)
        self.connection = ""
        self._both = both

    async def connect(self) -> None:
        target = self._both.pair.target
        transport = LoopbackTransport(self._both.pair.fabric, "stranger")
        transport.register(target.memory.ctypes.data, target.memory.size)
        node = NodeIdentity.new("stranger", "loopback", transport, target.slabs)
        contract = {**Contract("weights", target.layout).flat()}
        answer = await self.stub.Connect(
            pb.ConnectRequest(node=node_to_wire(node), contract=contract, lease_seconds=1.0),
            timeout=HANG_SECONDS,
        )
        assert answer.WhichOneof("result") == "connected", answer
        self.connection = answer.connected.connection_id

    async def abort(self, room: int, connection: str) -> pb.Drain:
        request = pb.AbortRequest(room=room, generation=GENERATION, connection_id=connection)
        return (await self.stub.Abort(request, timeout=HANG_SECONDS)).drain


def connection_of(both: Nodes) -> str:
    connection = both.client.links[0].connection
    assert connection is not None
    return connection.id


def test_an_abort_of_another_peers_room_leaves_it_alone() -> None:
    async def scenario() -> None:
        async with (
            nodes() as both,
            grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel,
        ):
            await both.connected()
            stranger = Stranger(both, channel)
            await stranger.connect()
            await both.grant(ROOM)
            await stranger.abort(ROOM, stranger.connection)
            both.compute(ROOM)
            both.say_token(ROOM)
            await both.decode.wait(m.RemoteDone, ROOM)
            assert not both.decode.of(m.HandoverFailed)

    run(scenario())


def test_a_room_that_one_peer_ended_is_not_over_for_another() -> None:
    async def scenario() -> None:
        async with (
            nodes() as both,
            grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel,
        ):
            await both.connected()
            stranger = Stranger(both, channel)
            await stranger.connect()
            await stranger.abort(ROOM, stranger.connection)
            await both.accept(ROOM)
            # While the stranger, who ended its own, is told that it is over.
            call = stranger.stub.Transfer()
            await call.write(handover_wire.reserve(stranger.connection, wanted(ROOM)))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert "over" in (refused.value.details() or "")

    run(scenario())


@pytest.mark.parametrize("guess", ["{}", "{}-1", "{}-2", "nobody"])
def test_a_connection_that_is_guessed_is_answered_for_by_nobody(guess: str) -> None:
    async def scenario() -> None:
        async with (
            nodes() as both,
            grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel,
        ):
            await both.connected()
            await both.reserve(ROOM)
            epoch, *_ = connection_of(both).split("-")
            stranger = Stranger(both, channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stranger.abort(ROOM, guess.format(epoch))
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            both.service.deliver(m.PrefillAccepted(m.RoomId(ROOM)))
            await both.decode.wait(m.GrantWanted, ROOM)

    run(scenario())


def test_the_names_of_connections_share_nothing_that_can_be_counted_up() -> None:
    async def scenario() -> None:
        async with (
            nodes() as both,
            grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel,
        ):
            await both.connected()
            stranger = Stranger(both, channel)
            await stranger.connect()
            names = [connection_of(both), stranger.connection]
            secrets = [name.rsplit("-", 1)[1] for name in names]
            assert all(len(secret) == 32 for secret in secrets) and len(set(secrets)) == 2

    run(scenario())


def test_a_forced_drain_is_never_forgotten_while_its_connection_is_known() -> None:
    """Forgotten it would be answered as drained, and granted ids be used while a write is under
    way."""
    living = {"a"}
    ended = EndedRooms(living.__contains__, rooms=3, connections=2)
    ended.began("a")
    ended.remember("a", 1, 1, Drain.FORCED)
    for room in range(2, 20):
        ended.remember("a", room, 1, Drain.DRAINED)
    assert ended.drain("a", 1, 1) is Drain.FORCED
    assert ended.drain("a", 2, 1) is None and ended.drain("a", 19, 1) is Drain.DRAINED
    assert ended.drain("a", 1, 2) is None
    for name in ("b", "c", "d"):
        assert ended.drain(name, 1, 1) is None
        ended.began(name)
    assert ended.knows("a") and not ended.knows("b"), "however many come after one that lives"
    living.clear()
    ended.began("b")
    assert not ended.knows("a") and not ended.knows("c") and ended.knows("b") and ended.knows("d")
    ended.remember("a", 1, 1, Drain.DRAINED)
    assert ended.drain("a", 1, 1) is None and not ended.knows("a")
