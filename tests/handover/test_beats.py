"""What beats and renewals do to leases, and what they tell of the nodes that exchange them."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest
from tasuki.prefill_node.decode_connections import ReceiverConnections
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.errors import TransportError
from tasuki.transfer.liveness.node_progress import (
    NodeProgress,
    progress_from_wire,
    progress_to_wire,
)
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.process_identity import ProcessIdentity
from tasuki.transfer.sending.connect import connect_within
from tasuki.utils.loops.loop_pulse import LoopPulse
from tasuki.utils.loops.loop_thread import LoopThread

from tests.harness.handover_nodes import nodes

NODE = NodeIdentity("decode-0", b"epoch", ProcessIdentity("", 0, 0, 0), "loopback", b"", 1)


@dataclass
class Sender:
    """As much of one as connections use; remembers what was asked of it."""

    renewed: list[float] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    slow: float = 0.0

    def connect(
        self, peer: str, metadata: bytes, slabs: int, asked_at: float | None = None
    ) -> None:
        time.sleep(self.slow)
        self.names.add(peer)

    def disconnect(self, peer: str) -> None:
        self.names.discard(peer)

    def renew(self, peer: str, asked_at: float) -> None:
        self.renewed.append(asked_at)

    def has_endpoint(self, peer: str) -> bool:
        return peer in self.names


def connections(sender: Sender, progress: NodeProgress) -> ReceiverConnections:
    return ReceiverConnections(
        b"epoch",
        sender,  # type: ignore[arg-type]
        beat_seconds=0.05,
        silence_seconds=5.0,
        on_lost=lambda name: None,
        on_drained=lambda drained: None,
        retry_seconds=0.0,
        settle_seconds=0.0,
        progress=lambda: progress,
    )


async def said(messages: "asyncio.Queue[pb.Renewal]") -> AsyncIterator[pb.Renewal]:
    while True:
        yield await messages.get()


def test_a_renewal_counts_from_when_its_beat_was_sent_however_late_it_comes() -> None:
    """From when it came, a lease would outlive what its owner believes of it, and so a write."""

    async def scenario() -> None:
        sender = Sender()
        ours = connections(sender, NodeProgress(1.5, 0.5))
        name = await ours.add(NODE, 2.0)
        renewals: asyncio.Queue[pb.Renewal] = asyncio.Queue()
        before = time.monotonic()
        beats = ours.beats(name, said(renewals))
        beat = await anext(beats)
        after = time.monotonic()
        assert (beat.progress.engine_seconds, beat.progress.front_seconds) == (1.5, 0.5)
        await asyncio.sleep(0.5)
        renewals.put_nowait(pb.Renewal(connection_id=name, sequence=beat.sequence))
        async with asyncio.timeout(10):
            while not sender.renewed:
                await anext(beats)
        assert before <= sender.renewed[0] <= after
        await beats.aclose()
        assert name not in ours and not sender.names

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.001])
@pytest.mark.parametrize("part", ["engine_seconds", "front_seconds"])
def test_what_is_no_duration_is_not_believed(bad: float, part: str) -> None:
    told = pb.Progress(engine_seconds=1.0, front_seconds=1.0)
    setattr(told, part, bad)
    assert progress_from_wire(told) is None


def test_progress_goes_there_and_back() -> None:
    progress = NodeProgress(0.25, 3.0)
    assert progress_from_wire(progress_to_wire(progress)) == progress


def test_peers_are_told_once_a_name_by_what_is_worst() -> None:
    async def scenario() -> None:
        ours = connections(Sender(), NodeProgress())
        alive = []
        for number, (engine, front) in enumerate([(1.0, 0.0), (0.0, 2.0), (math.nan, 9.0)]):
            node = NodeIdentity("decode" * 40, bytes([number]), NODE.process, "loopback", b"", 1)
            name = await ours.add(node, 2.0)
            renewals: asyncio.Queue[pb.Renewal] = asyncio.Queue()
            beats = ours.beats(name, said(renewals))
            alive.append(beats)
            await anext(beats)
            progress = pb.Progress(engine_seconds=engine, front_seconds=front)
            renewals.put_nowait(pb.Renewal(connection_id=name, progress=progress))
            await anext(beats)
            await anext(beats)
        (name, told), *more = ours.peers().items()
        assert told == NodeProgress(1.0, 2.0) and not more
        assert len(name) == 64
        for beats in alive:
            await beats.aclose()
        assert not ours.peers()

    asyncio.run(scenario())


def test_both_sides_of_a_link_learn_of_each_other() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            async with asyncio.timeout(10):
                while both.client.links[0].status().progress is None or not both.service.peers():
                    await asyncio.sleep(0.01)
            assert both.service.peers() == {"decode-0": NodeProgress()}

    asyncio.run(scenario())


def test_a_peer_that_opens_a_heartbeat_and_says_nothing_is_sent_away() -> None:
    async def scenario() -> None:
        async with nodes() as both, grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel:
            stub = handover_pb2_grpc.HandoverStub(channel)  # type: ignore[no-untyped-call]
            calls = (stub.Heartbeat(), stub.Transfer())
            ends = await asyncio.wait_for(
                asyncio.gather(*(call.read() for call in calls), return_exceptions=True), 20
            )
            assert [end.code() for end in ends] == [
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.INVALID_ARGUMENT,
            ]

    asyncio.run(scenario())


def test_an_endpoint_that_comes_too_late_is_let_go_of() -> None:
    async def scenario() -> None:
        sender = Sender(slow=0.3)
        with pytest.raises(TransportError, match="no endpoint to node decode-0"):
            await connect_within(0.05, sender, "late", NODE)  # type: ignore[arg-type]
        leaver = asyncio.create_task(
            connect_within(5.0, sender, "left", NODE)  # type: ignore[arg-type]
        )
        await asyncio.sleep(0.05)
        leaver.cancel()
        await asyncio.wait({leaver})
        await asyncio.sleep(0.6)
        assert not sender.names
        await connect_within(5.0, sender, "in time", NODE)  # type: ignore[arg-type]
        assert sender.names == {"in time"}

    asyncio.run(scenario())


def test_a_loop_that_does_not_come_round_is_behind_until_it_does() -> None:
    now = [100.0]
    there = LoopThread("there", lambda reason: None)
    pulse = LoopPulse(there.loop, lambda: now[0])
    assert pulse.behind() == 0.0
    now[0] += 3.0
    assert pulse.behind() == 3.0
    there.start()
    deadline = time.monotonic() + 10
    while pulse.behind() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert pulse.behind() == 0.0
    there.stop(10)
    there.close()
