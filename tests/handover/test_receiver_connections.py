"""From which moment a prefill node believes that it may write: the ask's, never the answer's."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import cast

import pytest
from tasuki.prefill_node import decode_connections
from tasuki.prefill_node.decode_connections import ReceiverConnections
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.fencing.writer_liveness import WriterLife
from tasuki.transfer.liveness.node_progress import NodeProgress
from tasuki.transfer.node_identity import ArenaAddress, NodeIdentity
from tasuki.transfer.process_identity import ProcessIdentity
from tasuki.transfer.sending.link import Link, SourceArena
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.sending.write_leases import WriteLeases
from tasuki.transfer.transports.base import Endpoint

from tests.harness.loopback_pair import loopback_pair
from tests.harness.waiting import HANG_SECONDS

LEASE = 1.0


class Somewhere(Endpoint):
    @property
    def remote_size(self) -> int:
        return 1


LINK = Link(cast(SourceArena, None), Somewhere(), 1)


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
            async with asyncio.timeout(HANG_SECONDS):
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
            async with asyncio.timeout(HANG_SECONDS):
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


class Endpoints:
    """In a sender's place: endpoints that stay open for `closing` seconds after they are let go
    of."""

    def __init__(self, closing: float) -> None:
        self._closing = closing
        self.open: set[str] = set()
        self.let_go: list[str] = []

    def connect(
        self, name: str, arenas: Sequence[ArenaAddress], asked_at: float | None = None
    ) -> None:
        self.open.add(name)

    def disconnect(self, name: str) -> None:
        self.let_go.append(name)
        asyncio.get_running_loop().call_later(self._closing, self.open.discard, name)

    def has_endpoint(self, name: str) -> bool:
        return name in self.open

    def renew(self, name: str, asked: float) -> None:
        pass


def receivers(
    endpoints: Endpoints,
    on_lost: Callable[[str], None],
    beat_seconds: float = 0.01,
    silence_seconds: float = 30.0,
) -> ReceiverConnections:
    return ReceiverConnections(
        epoch=b"epoch",
        sender=cast(Sender, endpoints),
        beat_seconds=beat_seconds,
        silence_seconds=silence_seconds,
        on_lost=on_lost,
        on_drained=lambda drained: None,
        retry_seconds=0.0,
        settle_seconds=0.0,
    )


def receiver(name: str, epoch: bytes = b"a process") -> NodeIdentity:
    """On another host."""
    return NodeIdentity(name, epoch, ProcessIdentity("another", 1, 1, 1), "loopback", ())


def test_who_connects_anew_has_given_up_what_led_to_it_and_it_is_closed_first() -> None:
    async def scenario() -> None:
        endpoints, lost = Endpoints(closing=0.05), []
        connections = receivers(endpoints, lost.append, silence_seconds=10.0)
        begun = time.monotonic()
        first = await connections.add(receiver("one"), LEASE)
        other = await connections.add(receiver("two", b"another process"), LEASE)
        again = await connections.add(receiver("one"), LEASE)
        assert endpoints.open == {other, again}
        assert time.monotonic() - begun < 10.0, "waited though it was closed"
        assert lost == endpoints.let_go == [first] and connections.nodes == ["two", "one"]
        # What is closed is forgotten, so that processes that come and go cost nothing.
        endpoints.open.discard(other)
        await connections.add(receiver("three", b"a third"), LEASE)
        assert set(connections._names) == {b"a process", b"a third"}
        connections.drop_all()
        assert connections.nodes == [] and len(lost) == len(set(lost)) == 4

    asyncio.run(scenario())


def test_an_endpoint_that_never_closes_keeps_nobody_out() -> None:
    async def scenario() -> None:
        endpoints = Endpoints(closing=3600.0)
        connections = receivers(endpoints, lambda name: None, silence_seconds=0.1)
        first = await connections.add(receiver("one"), LEASE)
        async with asyncio.timeout(HANG_SECONDS):
            again = await connections.add(receiver("one"), LEASE)
        assert endpoints.open == {first, again}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("end", "warned"),
    [("hangs up", []), ("breaks", ["receiver one: a broken stream"]), ("is given up", [])],
)
def test_beats_end_with_their_receiver_and_leave_no_task(
    end: str, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        endpoints, lost = Endpoints(closing=0.0), []
        connections = receivers(endpoints, lost.append)
        name = await connections.add(receiver("one"), LEASE)
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def renewals() -> AsyncIterator[pb.Renewal]:
            yield pb.Renewal(sequence=await asked, progress=pb.Progress(engine_seconds=3.0))
            await over.wait()
            if end == "breaks":
                raise RuntimeError("a broken stream")

        assert connections.may_beat(name) and not connections.may_beat("another")
        beats = connections.beats(name, renewals())
        first = await anext(beats)
        assert not connections.may_beat(name) and connections.peers() == {}
        asked.set_result(first.sequence)
        async with asyncio.timeout(HANG_SECONDS):
            while (await anext(beats)).received != first.sequence:
                pass
        assert connections.peers() == {"one": NodeProgress(3.0, 0.0)}
        if end == "is given up":
            connections.drop(name)
        else:
            over.set()
        left = 0
        async for _ in beats:
            left += 1
            assert left < 10, "beats to nobody"
        assert lost == endpoints.let_go == [name] and name not in connections
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == warned


def test_a_receiver_that_answers_no_beats_is_lost_after_its_silence() -> None:
    """Once it beats there is no grace: it has tried this node's metadata."""

    async def scenario() -> None:
        lost: list[str] = []
        connections = receivers(Endpoints(0.0), lost.append, 0.02, silence_seconds=0.2)
        name = await connections.add(receiver("one"), LEASE)
        beats = 0
        async for _ in connections.beats(name, aiter(Answers())):
            beats += 1
        assert 1 < beats < 50 and lost == [name]

    asyncio.run(scenario())


def test_a_receivers_own_lease_counts_from_the_last_beat_that_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    timed = partial(WriterLife, clock=lambda: now[0])
    monkeypatch.setattr(decode_connections, "WriterLife", timed)

    async def scenario() -> None:
        connections = receivers(Endpoints(0.0), lambda name: None)
        name = await connections.add(receiver("one"), LEASE)
        now[0] = 105.0
        beats = connections.beats(name, aiter(Answers()))
        await anext(beats)
        writer = connections.writer(name)
        assert writer is not None
        now[0] = 105.0 + LEASE
        connections.drop(name)
        (expired,) = writer.evidence()
        assert not expired.holds(), "it may have asked when the beat was sent"
        now[0] += 0.1
        assert expired.holds()
        await beats.aclose()

    asyncio.run(scenario())
