"""From which moment a prefill node believes that it may write: the ask's, never the answer's."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tasuki.prefill_node.decode_connections import ReceiverConnections
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.sending.write_leases import WriterLeases
from tasuki.transfer.transports.base import Endpoint

from tests.harness.loopback_pair import loopback_pair

LEASE = 1.0


class Somewhere(Endpoint):
    @property
    def remote_size(self) -> int:
        return 1


ENDPOINT = Somewhere()


class Answers:
    """A receiver's renewals, said when the test says them."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[pb.Renewal] = asyncio.Queue()

    def say(self, sequence: int) -> None:
        self._said.put_nowait(pb.Renewal(sequence=sequence))

    async def __aiter__(self) -> AsyncIterator[pb.Renewal]:
        while True:
            yield await self._said.get()


def test_a_renewal_counts_from_when_its_beat_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with loopback_pair() as pair:
            renewed: list[float] = []
            renew = pair.sender.renew

            def seen(name: str, asked: float) -> None:
                renewed.append(asked)
                renew(name, asked)

            monkeypatch.setattr(pair.sender, "renew", seen)
            connections = ReceiverConnections(
                epoch=b"epoch",
                sender=pair.sender,
                beat_seconds=30.0,
                silence_seconds=30.0,
                on_lost=lambda name: None,
                on_drained=lambda drained: None,
                retry_seconds=0.0,
                settle_seconds=0.0,
            )
            node = NodeIdentity.new("decode", "loopback", pair.target.transport, pair.target.slabs)
            name = await connections.add(node, lease_seconds=LEASE)
            assert connections.writer(name) is not None and connections.writer("gone") is None
            answers = Answers()
            beats = connections.beats(name, aiter(answers))
            beat = await anext(beats)
            sent = time.monotonic()
            # The answer comes late, and is read later still.
            await asyncio.sleep(0.05)
            answers.say(beat.sequence)
            # One that nobody asked for renews nothing.
            answers.say(beat.sequence + 1)
            answers.say(beat.sequence)
            async with asyncio.timeout(10):
                while not renewed:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            assert len(renewed) == 1 and renewed[0] <= sent
            await beats.aclose()

    asyncio.run(scenario())


def test_who_connects_and_never_beats_does_not_stay_and_who_beats_does() -> None:
    async def scenario() -> None:
        with loopback_pair() as pair:
            lost: list[str] = []
            broken: list[object] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: broken.append(context))
            connections = ReceiverConnections(
                epoch=b"epoch",
                sender=pair.sender,
                beat_seconds=0.02,
                silence_seconds=0.2,
                on_lost=lost.append,
                on_drained=lambda drained: None,
                retry_seconds=0.0,
                settle_seconds=0.0,
            )
            beating, silent = [
                await connections.add(
                    NodeIdentity.new(name, "loopback", pair.target.transport, pair.target.slabs),
                    lease_seconds=LEASE,
                )
                for name in ("beating", "silent")
            ]
            answers = Answers()
            beats = connections.beats(beating, aiter(answers))
            async with asyncio.timeout(30):
                async for beat in beats:
                    answers.say(beat.sequence)
                    if silent not in connections:
                        break
            assert lost == [silent] and beating in connections
            await beats.aclose()
            assert lost == [silent, beating]
            # Whatever still looks after the two finds them gone.
            await asyncio.sleep(0.1)
            assert not broken

    asyncio.run(scenario())


def leases(now: list[float]) -> WriterLeases:
    held = WriterLeases(LEASE, lambda: now[0])
    held.add("peer", ENDPOINT, slabs=1)
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
    held = WriterLeases(LEASE, lambda: now[0])
    held.add("peer", ENDPOINT, slabs=1, asked_at=99.5)
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
    assert held.left(busy=set()) == [("peer", ENDPOINT)]
    held.forget("peer")
    assert not held.has_endpoint("peer") and held.left(busy=set()) == []
