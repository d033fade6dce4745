"""A prefill node counts its write lease from the request, never from the answer. Also its knowledge
of renewing decode nodes."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tasuki.prefill_node import decode_connections
from tasuki.prefill_node.decode_connections import ReceiverConnections
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.control.link_status import NodeProgress
from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.errors import TransportError
from tasuki.transfer.lifecycle.fence import Fence, FenceReason
from tasuki.transfer.node_identity import ArenaAddress, NodeIdentity, ProcessIdentity
from tasuki.transfer.sending.link import Link, WriteLeases
from tasuki.transfer.sending.sender import connect_within
from tasuki.transfer.transports.base import Endpoint
from tests.harness.waiting import HANG_SECONDS

LEASE = 1.0


class Somewhere(Endpoint):
    @property
    def remote_size(self) -> int:
        return 1


NOTHING = cast(Any, None)
LINK = Link(NOTHING, NOTHING, Somewhere(), NOTHING)


@dataclass
class Sender:
    """A sender as far as connections use it; it records the calls. closing: seconds an endpoint
    stays open after its release. open: clear while no connection can be made."""

    closing: float = 0.0
    renewed: list[float] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.open.set()

    def connect(self, peer: str, arenas: object, asked_at: float | None = None) -> None:
        self.asked.append(peer)
        assert self.open.wait(HANG_SECONDS)
        self.names.add(peer)

    def disconnect(self, peer: str) -> None:
        self.left.append(peer)
        if self.closing:
            asyncio.get_running_loop().call_later(self.closing, self.names.discard, peer)
        else:
            self.names.discard(peer)

    def renew(self, peer: str, asked_at: float) -> None:
        self.renewed.append(asked_at)

    def has_endpoint(self, peer: str) -> bool:
        return peer in self.names


def node_of(name: str, epoch: bytes = b"a process") -> NodeIdentity:
    """Return a node on another host."""
    return NodeIdentity(
        name, epoch, ProcessIdentity("another", 1, 1, 1), "loopback", (ArenaAddress(b"", 1),)
    )


class Connections(ReceiverConnections):
    """Connections with a list of the lost ones."""

    def __init__(
        self,
        sender: Sender,
        heartbeat_seconds: float = 0.01,
        timeout_seconds: float = 30.0,
        load: Callable[[str], pb.Load | None] = lambda name: None,
    ) -> None:
        self.lost: list[str] = []
        self.drained: list[pb.DrainedPull] = []
        super().__init__(
            b"epoch",
            sender,  # type: ignore[arg-type]
            heartbeat_seconds,
            timeout_seconds,
            transport=Mock(retry_seconds=0.0, settle_seconds=0.0),
            owner=Mock(
                connection_lost=self.lost.append,
                pull_drained=self.drained.append,
                progress=lambda: NodeProgress(1.5, 0.5),
                load=load,
                leaves=False,
            ),
        )


class Renewals:
    """A receiver's, sent when the test sends them."""

    def __init__(self) -> None:
        self._sent: asyncio.Queue[pb.Renewal] = asyncio.Queue()

    def send(
        self,
        sequence: int,
        progress: pb.Progress | None = None,
        drained: Sequence[pb.DrainedPull] = (),
    ) -> None:
        self._sent.put_nowait(pb.Renewal(sequence=sequence, progress=progress, drained=drained))

    async def __aiter__(self) -> AsyncIterator[pb.Renewal]:
        while True:
            yield await self._sent.get()


async def test_a_renewal_counts_from_when_its_beat_was_sent_however_late_it_comes() -> None:
    """If it counted from its arrival, a lease and so a write would outlive its owner's estimate."""
    sender = Sender()
    ours = Connections(sender, heartbeat_seconds=30.0, timeout_seconds=30.0)
    name = await ours.add(node_of("decode"), LEASE)
    assert ours.writer(name) is not None and ours.writer("gone") is None
    renewals = Renewals()
    before = time.monotonic()
    heartbeats = ours.heartbeats(name, aiter(renewals))
    heartbeat = await anext(heartbeats)
    sent = time.monotonic()
    assert (heartbeat.progress.engine_seconds, heartbeat.progress.front_seconds) == (1.5, 0.5)
    # The answer comes late, and is read later still.
    await asyncio.sleep(0.05)
    renewals.send(heartbeat.sequence)
    # An unrequested answer renews nothing, nor does one already counted.
    renewals.send(heartbeat.sequence + 1)
    renewals.send(heartbeat.sequence)
    async with asyncio.timeout(HANG_SECONDS):
        while not sender.renewed:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    (renewed,) = sender.renewed
    assert before <= renewed <= sent
    await heartbeats.aclose()
    assert name not in ours and not sender.names


async def test_pulls_that_have_drained_are_told_with_whatever_renewal_they_come() -> None:
    ours = Connections(Sender(), heartbeat_seconds=0.01, timeout_seconds=30.0)
    name = await ours.add(node_of("decode"), LEASE)
    renewals = Renewals()
    heartbeats = ours.heartbeats(name, aiter(renewals))
    first, *more = [pb.DrainedPull(room=transfer_id) for transfer_id in (3, 5, 7)]
    renewals.send((await anext(heartbeats)).sequence, drained=[first])
    # An answer without a heartbeat.
    renewals.send(1000, drained=more)
    async with asyncio.timeout(HANG_SECONDS):
        while len(ours.drained) < 3:
            await anext(heartbeats)
    assert ours.drained == [first, *more]
    await heartbeats.aclose()


async def test_who_connects_and_never_beats_does_not_stay_and_who_beats_does() -> None:
    broken: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: broken.append(context))
    ours = Connections(Sender(), heartbeat_seconds=0.02, timeout_seconds=0.2)
    beating, silent = [
        await ours.add(node_of(name, name.encode()), LEASE) for name in ("beating", "silent")
    ]
    renewals = Renewals()
    heartbeats = ours.heartbeats(beating, aiter(renewals))
    async with asyncio.timeout(HANG_SECONDS):
        async for heartbeat in heartbeats:
            renewals.send(heartbeat.sequence)
            if silent not in ours:
                break
    assert ours.lost == [silent] and beating in ours
    await heartbeats.aclose()
    assert ours.lost == [silent, beating]
    # Late checks of these two find them gone.
    await asyncio.sleep(0.1)
    assert not broken


async def test_peers_are_told_once_a_name_by_what_is_worst() -> None:
    ours = Connections(Sender(), heartbeat_seconds=0.05, timeout_seconds=5.0)
    alive = []
    for number, (engine, front) in enumerate([(1.0, 0.0), (0.0, 2.0), (math.nan, 9.0)]):
        name = await ours.add(node_of("decode" * 40, bytes([number])), 2.0)
        renewals = Renewals()
        heartbeats = ours.heartbeats(name, aiter(renewals))
        alive.append(heartbeats)
        await anext(heartbeats)
        renewals.send(0, pb.Progress(engine_seconds=engine, front_seconds=front))
        await anext(heartbeats)
        await anext(heartbeats)
    (name, told), *more = ours.peers().items()
    assert told == NodeProgress(1.0, 2.0) and not more
    assert len(name) == 64
    for heartbeats in alive:
        await heartbeats.aclose()
    assert not ours.peers()


async def test_an_endpoint_that_comes_too_late_is_let_go_of() -> None:
    sender, node = Sender(), node_of("decode-0")
    sender.open.clear()
    with pytest.raises(TransportError, match="no endpoint to node decode-0"):
        await connect_within(0.05, sender, "late", node)  # type: ignore[arg-type]
    leaver = asyncio.create_task(
        connect_within(HANG_SECONDS, sender, "left", node)  # type: ignore[arg-type]
    )
    async with asyncio.timeout(HANG_SECONDS):
        while "left" not in sender.asked:
            await asyncio.sleep(0.001)
        leaver.cancel()
        await asyncio.wait({leaver})
        sender.open.set()
        while len(sender.left) < 2:
            await asyncio.sleep(0.001)
    assert sorted(sender.left) == ["late", "left"] and not sender.names
    await connect_within(HANG_SECONDS, sender, "in time", node)  # type: ignore[arg-type]
    assert sender.names == {"in time"}


def leases(now: list[float]) -> WriteLeases:
    held = WriteLeases(LEASE, lambda: now[0])
    held.add("peer", [LINK])
    return held


def test_a_lease_holds_as_long_as_it_was_given_from_the_ask() -> None:
    now = [100.0]
    held = leases(now)
    now[0] = 100.9
    held.renew("peer", 100.5)
    now[0] = 101.5
    assert held.writable("peer") is not None, "to the end of the lease"
    now[0] = 101.5 + 1e-6
    assert held.writable("peer") is None
    assert held.peer("peer") is not None, "known, though nothing may be written to it"


def test_an_older_ask_that_is_answered_later_shortens_no_lease() -> None:
    now = [100.0]
    held = leases(now)
    held.renew("peer", 100.8)
    held.renew("peer", 100.2)
    now[0] = 101.7
    assert held.writable("peer") is not None


def test_the_first_lease_counts_from_the_ask_too() -> None:
    now = [100.0]
    held = WriteLeases(LEASE, lambda: now[0])
    held.add("peer", [LINK], asked_at=99.5)
    now[0] = 100.4
    assert held.writable("peer") is not None
    now[0] = 100.6
    assert held.writable("peer") is None


def test_who_has_left_is_not_written_to_and_its_endpoint_waits_for_what_is_in_flight() -> None:
    now = [100.0]
    held = leases(now)
    held.remove("peer")
    held.remove("peer")
    held.renew("peer", 100.0)
    assert held.writable("peer") is None and held.peer("peer") is None
    assert held.names() == [] and held.has_endpoint("peer")
    assert held.left(busy={"peer"}) == []
    assert held.left(busy=set()) == [("peer", (LINK,))]
    held.forget("peer")
    assert not held.has_endpoint("peer") and held.left(busy=set()) == []


async def test_who_connects_anew_has_given_up_what_led_to_it_and_it_is_closed_first() -> None:
    sender = Sender(closing=0.05)
    connections = Connections(sender, timeout_seconds=10.0)
    begun = time.monotonic()
    first = await connections.add(node_of("one"), LEASE)
    other = await connections.add(node_of("two", b"another process"), LEASE)
    again = await connections.add(node_of("one"), LEASE)
    assert sender.names == {other, again}
    assert time.monotonic() - begun < 10.0, "waited though it was closed"
    assert connections.lost == sender.left == [first] and connections.nodes == ["two", "one"]
    # Closed connections are forgotten, so many short-lived processes cost nothing.
    sender.names.discard(other)
    await connections.add(node_of("three", b"a third"), LEASE)
    assert set(connections._names) == {b"a process", b"a third"}
    connections.drop_all()
    lost = connections.lost
    assert connections.nodes == [] and len(lost) == len(set(lost)) == 4


async def test_an_endpoint_that_never_closes_keeps_nobody_out() -> None:
    sender = Sender(closing=3600.0)
    connections = Connections(sender, timeout_seconds=0.1)
    first = await connections.add(node_of("one"), LEASE)
    async with asyncio.timeout(HANG_SECONDS):
        again = await connections.add(node_of("one"), LEASE)
    assert sender.names == {first, again}


@pytest.mark.parametrize(
    ("end", "warned"),
    [("hangs up", []), ("breaks", ["receiver one: a broken stream"]), ("is given up", [])],
)
def test_beats_end_with_their_receiver_and_leave_no_task(
    end: str, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        sender = Sender()
        connections = Connections(sender)
        name = await connections.add(node_of("one"), LEASE)
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def renewals() -> AsyncIterator[pb.Renewal]:
            yield pb.Renewal(sequence=await asked, progress=pb.Progress(engine_seconds=3.0))
            await over.wait()
            if end == "breaks":
                raise RuntimeError("a broken stream")

        assert connections.may_send_heartbeat(name) and not connections.may_send_heartbeat(
            "another"
        )
        heartbeats = connections.heartbeats(name, renewals())
        first = await anext(heartbeats)
        assert not connections.may_send_heartbeat(name) and connections.peers() == {}
        asked.set_result(first.sequence)
        async with asyncio.timeout(HANG_SECONDS):
            while (await anext(heartbeats)).received != first.sequence:
                pass
        assert connections.peers() == {"one": NodeProgress(3.0, 0.0)}
        if end == "is given up":
            connections.drop(name)
        else:
            over.set()
        left = 0
        async for _ in heartbeats:
            left += 1
            assert left < 10, "beats to nobody"
        assert connections.lost == sender.left == [name] and name not in connections
        async with asyncio.timeout(HANG_SECONDS):
            while asyncio.all_tasks() != {asyncio.current_task()}:
                await asyncio.sleep(0.001)

    asyncio.run(scenario())
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == warned


async def test_a_receiver_that_answers_no_beats_is_lost_after_its_silence() -> None:
    """After its first heartbeat there is no grace period, because it has tried this node's
    metadata."""
    connections = Connections(Sender(), 0.02, timeout_seconds=0.2)
    name = await connections.add(node_of("one"), LEASE)
    heartbeats = 0
    async for _ in connections.heartbeats(name, aiter(Renewals())):
        heartbeats += 1
    assert 1 < heartbeats < 50 and connections.lost == [name]


async def test_a_receivers_own_lease_counts_from_the_last_beat_that_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    timed = partial(WriterLife, clock=lambda: now[0])
    monkeypatch.setattr(decode_connections, "WriterLife", timed)

    connections = Connections(Sender())
    name = await connections.add(node_of("one"), LEASE)
    now[0] = 105.0
    heartbeats = connections.heartbeats(name, aiter(Renewals()))
    await anext(heartbeats)
    writer = connections.writer(name)
    assert writer is not None
    now[0] = 105.0 + LEASE
    connections.drop(name)
    fence = Fence(writer.terms(acknowledge=1.0, patience=1.0))
    asked_then = fence.reason(writer.facts(), now[0])
    assert asked_then is None, "it may have asked when the beat was sent"
    now[0] += 0.1
    assert fence.reason(writer.facts(), now[0]) is FenceReason.LEASE_EXPIRED
    await heartbeats.aclose()


async def test_the_load_goes_along_once_it_is_known_and_not_with_every_beat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode_connections, "_LOAD_SECONDS", 3600.0)
    known = iter([None, pb.Load(wait_seconds=3.0)])

    connections = Connections(Sender(), load=lambda name: next(known))
    name = await connections.add(node_of("one"), LEASE)
    heartbeats = connections.heartbeats(name, aiter(Renewals()))
    told = [(await anext(heartbeats)).load.wait_seconds for _ in range(4)]
    assert told == [0.0, 3.0, 0.0, 0.0]
    await heartbeats.aclose()
