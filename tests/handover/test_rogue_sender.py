"""A sender that breaks the rules of a hand-over or of a fetch, at a real receiver. A lost,
repeated, reordered or untrue status, or one of another generation, commits nothing. Each transfer
ends once, and its destination is fenced."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

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

TRANSFER_ID = 5
Says = pb.SenderMessage
HUGE = 2**32 - 1
SHORT = 1.0
"""Seconds limit of a fetch; even on a busy machine it has its destination by then."""


def ready(generation: int = GENERATION) -> Says:
    return Says(ready=pb.Ready(generation=generation, token=42))


def held(generation: int = GENERATION) -> Says:
    return Says(held=pb.Held(generation=generation))


def done(*chunks: pb.Window, generation: int = GENERATION) -> Says:
    return Says(done=pb.Done(generation=generation, windows=chunks))


def chunk(**fields: int) -> pb.Window:
    return pb.Window(**{"end_layer": 8, "pages": 4, "carries_state": True, **fields})


def said(to: pb.ReceiverBatch, *messages: Says) -> pb.SenderBatch:
    """Return the messages in a batch of the received message's transfer."""
    batch = pb.SenderBatch(messages=messages)
    for message in batch.messages:
        message.room = to.messages[0].room
    return batch


class RogueSender(handover_pb2_grpc.HandoverServicer):
    """A sender that accepts every transfer, then follows its script."""

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
        # All messages are in one batch, with the same meaning as alone.
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


@dataclass(frozen=True)
class Breach:
    """A breach. script: messages after the grant. hangs_up: the stream ends after them."""

    kind: str
    script: tuple[Says, ...] = ()
    hangs_up: bool = False


HANDOVER, FETCH = "hand-over", "fetch"
WORDS = {HANDOVER: (ready, held), FETCH: (held, ready)}
"""The message that announces the bytes, and its counterpart in the other kind of transfer."""


def breaches(kind: str) -> dict[str, Breach]:
    word, other = WORDS[kind]
    scripts: dict[str, tuple[Says, ...]] = {
        "accepted twice": (Says(accepted=pb.Accepted()),),
        "queued after accepted": (Says(queued=pb.Queued(position=1)),),
        "its word twice": (word(), word()),
        "its word of another generation": (word(GENERATION - 1),),
        "the word of another kind": (other(),),
        "the word of another kind, behind its own": (word(), other()),
        "a pull": (Says(pull=pb.Pull(generation=1, tokens=1, pages=[0])),),
        "done before its word": (done(),),
        "done of nothing": (word(), done()),
        "done of windows that never came": (word(), done(chunk())),
        "done twice": (word(), done(chunk()), done(chunk())),
        "done of another generation": (word(), done(generation=GENERATION + 1)),
        "done of layers that are none": (word(), done(chunk(end_layer=HUGE))),
        "done of pages that are none": (word(), done(chunk(first_page=HUGE, pages=HUGE))),
        "done of the same window twice": (word(), done(chunk(), chunk())),
        "a message of another version": (Says(),),
        "refused after the grant": (Says(refused=pb.Refused(kind=pb.ERROR_KIND_BUSY)),),
        "failed, not drained": (Says(failed=pb.Failed(drain=pb.DRAIN_FORCED)),),
        "failed, an unknown drain": (word(), Says(failed=pb.Failed(drain=77))),
        "aborted by itself": (word(), Says(aborted=pb.Aborted(drain=pb.DRAIN_DRAINED))),
    }
    if kind == FETCH:
        scripts["the stop of a pull"] = held(), Says(stop_pull=pb.StopPull())
    found = {name: Breach(kind, script) for name, script in scripts.items()}
    found["hangs up after the grant"] = Breach(kind, (), hangs_up=True)
    found["hangs up after its word"] = Breach(kind, (word(),), hangs_up=True)
    return {f"{kind}, {name}": breach for name, breach in found.items()}


BREACHES = breaches(HANDOVER) | breaches(FETCH)


@pytest.mark.parametrize("name", BREACHES)
async def test_a_breach_ends_the_room_once_and_commits_nothing(name: str) -> None:
    lost = await ended_by(BREACHES[name], HANG_SECONDS)
    assert isinstance(lost, m.HandoverFailed) or lost.outcome is m.FetchOutcome.LOST


@pytest.mark.parametrize("script", [(), (held(),)], ids=["never held", "never done"])
async def test_who_never_gives_what_is_fetched_is_late(script: tuple[Says, ...]) -> None:
    lost = await ended_by(Breach(FETCH, script), SHORT)
    assert isinstance(lost, m.FetchLost) and lost.outcome is m.FetchOutcome.LATE


async def ended_by(breach: Breach, seconds: float) -> m.HandoverFailed | m.FetchLost:
    """Return the loss after a breach. seconds: limit of a fetch."""
    async with receiver(breach.script, breach.hangs_up) as (client, inbound, pair):
        await inbound.wait(m.PeersChanged)
        asked: m.HandoverWanted | m.FetchWanted = wanted(TRANSFER_ID)
        if breach.kind == FETCH:
            transfer_request = m.FetchRequest(m.TransferId(TRANSFER_ID), GENERATION, b"salt")
            target = client.links[0].target
            asked = m.FetchWanted(transfer_request, wanted(TRANSFER_ID).prompt, target, seconds)
        client.deliver(asked)
        await inbound.wait(m.GrantWanted)
        client.deliver(m.HandoverGranted(grant_of(TRANSFER_ID, pair.target.layout)))
        kind = m.FetchLost if breach.kind == FETCH else m.HandoverFailed
        lost = await inbound.wait(kind)
        await inbound.wait(m.WriterFenced)
        await over(lambda: not (client._transfers or client._fetches))
        kinds = [type(message) for message in inbound.messages]
        assert kinds.count(kind) == kinds.count(m.WriterFenced) == 1
        assert kinds.index(kind) < kinds.index(m.WriterFenced)
        assert kinds.count(m.RemoteReady) <= (breach.kind == HANDOVER)
        assert not {m.RemoteDone, m.PullAsked} & {*kinds}
        assert not {m.FetchLost, m.HandoverFailed} - {kind} & {*kinds}
        # After the lease's end the link is made again; the next prompt may go there.
        await over(lambda: client.links[0].connection is not None)
        assert isinstance(lost, m.HandoverFailed | m.FetchLost)
        return lost


async def over(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not holds():
            await asyncio.sleep(0.005)
