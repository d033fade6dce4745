"""A sender that breaks the rules of the hand-over, at a real receiver: status that is lost,
repeated, out of order, of another generation or untrue commits nothing; each room ends once, and is
fenced."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tasuki.decode_node.handover_client import HandoverClient
from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.protocol.messages import node_to_wire
from tests.harness.handover_nodes import (
    GENERATION,
    SLABS,
    Inbound,
    grant_of,
    receiving,
    serving,
    wanted,
)
from tests.harness.loopback_pair import Pair, loopback_pair
from tests.harness.waiting import HANG_SECONDS

ROOM = 5
Says = pb.SenderMessage
HUGE = 2**32 - 1


def ready(generation: int = GENERATION) -> Says:
    return Says(ready=pb.Ready(generation=generation, token=42))


def done(*windows: pb.Window, generation: int = GENERATION) -> Says:
    return Says(done=pb.Done(generation=generation, windows=windows))


def window(**fields: int) -> pb.Window:
    return pb.Window(**{"end_layer": 8, "pages": 4, "carries_state": True, **fields})


def said(to: pb.ReceiverBatch, *messages: Says) -> pb.SenderBatch:
    """In the room of what was heard."""
    batch = pb.SenderBatch(messages=messages)
    for message in batch.messages:
        message.room = to.messages[0].room
    return batch


class RogueSender(handover_pb2_grpc.HandoverServicer):
    """Accepts every room, then says what it was told to."""

    def __init__(self, node: NodeIdentity, script: tuple[Says, ...], hangs_up: bool) -> None:
        self._node = node
        self._script = script
        self._hangs_up = hangs_up

    async def Connect(self, request: pb.ConnectRequest, context: object) -> pb.ConnectResponse:
        connected = pb.Connected(
            node=node_to_wire(self._node), connection_id="rogue-1", lease_seconds=0.2
        )
        return pb.ConnectResponse(connected=connected)

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.Renewal], context: object
    ) -> AsyncIterator[pb.Beat]:
        sequence = 0
        while True:
            sequence += 1
            yield pb.Beat(sequence=sequence)
            await asyncio.sleep(0.1)

    async def Transfer(
        self, request_iterator: AsyncIterator[pb.ReceiverBatch], context: object
    ) -> AsyncIterator[pb.SenderBatch]:
        yield said(await anext(request_iterator), Says(accepted=pb.Accepted()))
        granted = await anext(request_iterator)
        # All in one batch: each message means what it would alone.
        yield said(granted, *self._script)
        if not self._hangs_up:
            async for batch in request_iterator:
                if batch.messages[0].WhichOneof("message") == "abort":
                    yield said(batch, Says(aborted=pb.Aborted(drain=pb.DRAIN_DRAINED)))

    async def Abort(self, request: pb.AbortRequest, context: object) -> pb.AbortResponse:
        return pb.AbortResponse(drain=pb.DRAIN_DRAINED)


@asynccontextmanager
async def receiver(
    script: tuple[Says, ...], hangs_up: bool
) -> AsyncIterator[tuple[HandoverClient, Inbound, Pair]]:
    with loopback_pair(slabs=SLABS) as pair:
        node = NodeIdentity.new("rogue", "loopback", pair.source.transport.metadata(), SLABS)
        rogue = RogueSender(node, script, hangs_up)
        inbound = Inbound()
        contract = Contract("weights", pair.target.layout)
        async with (
            serving(rogue) as (_, port),
            receiving(pair, port, inbound.post, contract) as client,
        ):
            yield client, inbound, pair


BREACHES: dict[str, tuple[tuple[Says, ...], bool]] = {
    "hangs up after the grant": ((), True),
    "hangs up after ready": ((ready(),), True),
    "accepted twice": ((Says(accepted=pb.Accepted()),), False),
    "queued after accepted": ((Says(queued=pb.Queued(position=1)),), False),
    "ready twice": ((ready(), ready()), False),
    "done before ready": ((done(),), False),
    "done of nothing": ((ready(), done()), False),
    "done of windows that never came": ((ready(), done(window())), False),
    "done twice": ((ready(), done(window()), done(window())), False),
    "ready of another generation": ((ready(GENERATION - 1),), False),
    "done of another generation": ((ready(), done(generation=GENERATION + 1)), False),
    "done of layers that are none": ((ready(), done(window(end_layer=HUGE))), False),
    "done of pages that are none": ((ready(), done(window(first_page=HUGE, pages=HUGE))), False),
    "a message of another version": ((Says(),), False),
    "refused after the grant": ((Says(refused=pb.Refused(reason="changed my mind")),), False),
    "failed, not drained": ((Says(failed=pb.Failed(drain=pb.DRAIN_FORCED)),), False),
    "failed, an unknown drain": ((ready(), Says(failed=pb.Failed(drain=7))), False),
    "aborted by itself": ((ready(), Says(aborted=pb.Aborted(drain=pb.DRAIN_DRAINED))), False),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_ends_the_room_once_and_commits_nothing(breach: str) -> None:
    script, hangs_up = BREACHES[breach]

    async def scenario() -> None:
        async with receiver(script, hangs_up) as (client, inbound, pair):
            await inbound.wait(m.PeersChanged)
            client.deliver(wanted(ROOM))
            await inbound.wait(m.GrantWanted)
            client.deliver(m.HandoverGranted(grant_of(ROOM, pair.target.layout)))
            await inbound.wait(m.HandoverFailed)
            await inbound.wait(m.WriterFenced)
            await over(lambda: not client._rooms)
            kinds = [type(message) for message in inbound.messages]
            assert kinds.count(m.HandoverFailed) == kinds.count(m.WriterFenced) == 1
            assert kinds.index(m.HandoverFailed) < kinds.index(m.WriterFenced)
            assert kinds.count(m.RemoteReady) <= 1 and m.RemoteDone not in kinds
            # After a lease's end the link is made anew; the next prompt may go there.
            await over(lambda: client.links[0].connection is not None)

    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))


async def over(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not holds():
            await asyncio.sleep(0.005)
