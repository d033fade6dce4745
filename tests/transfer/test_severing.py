"""After a fence, by its reason: the connections to break, how often, and one wait shared by many
callers."""

import asyncio
import threading
import time
from dataclasses import dataclass, field, replace

import pytest

from tasuki.transfer.control.writer_life import ConnectionBreaker, WriterLife
from tasuki.transfer.lifecycle.fence import Fence, FenceReason
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport
from tests.harness.waiting import HANG_SECONDS


class Watched(LoopbackTransport):
    def __init__(self) -> None:
        super().__init__(LoopbackFabric(), "watched")
        self.did: list[str] = []

    def sever(self) -> None:
        self.did.append("sever")

    def sever_dead(self) -> int:
        self.did.append("sever_dead")
        return 0


@dataclass
class SlowReceiver:
    """A receiver whose wait_settled() lasts until it is released."""

    waits: int = 0
    go: threading.Event = field(default_factory=threading.Event)

    def wait_settled(self) -> None:
        self.waits += 1
        assert self.go.wait(HANG_SECONDS)


@dataclass(eq=False)
class Link:
    severed: bool = False


def run(
    reason: FenceReason, links: list[Link], transfers: int
) -> tuple[Watched, SlowReceiver, int]:
    """End `rooms` transfers of the first link at once, and as many later. Return the number of
    times all links were lost as the third value."""
    transport, receiver, lost = Watched(), SlowReceiver(), []

    def lose_all() -> list[Link]:
        lost.append(True)
        return links

    async def scenario() -> None:
        severing = ConnectionBreaker(transport, receiver, lose_all)  # type: ignore[arg-type]
        ends = [asyncio.create_task(severing.end(links[0], reason)) for _ in range(transfers)]
        _, waiting = await asyncio.wait(ends, timeout=0.1)
        if reason is not FenceReason.DRAIN_ACKNOWLEDGED:
            assert len(waiting) == transfers, "went on before what was written had landed"
        receiver.go.set()
        await asyncio.gather(*ends)
        await asyncio.gather(*(severing.end(link, reason) for link in links))

    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))
    return transport, receiver, len(lost)


@pytest.mark.parametrize(
    ("reason", "did", "lost"),
    [
        (FenceReason.DRAIN_ACKNOWLEDGED, set(), 0),
        (FenceReason.WRITER_DEAD, {"sever_dead"}, 0),
        (FenceReason.LEASE_EXPIRED, {"sever"}, 1),
    ],
)
def test_each_reason_breaks_what_it_leaves_open(
    reason: FenceReason, did: set[str], lost: int
) -> None:
    transport, receiver, losses = run(reason, [Link(), Link()], transfers=40)
    assert set(transport.did) == did
    assert losses == lost
    # A caller that comes during a wait needs the next one, and shares it.
    assert (receiver.waits > 0) == bool(did) and receiver.waits < 10


def test_what_was_severed_is_not_severed_again() -> None:
    links = [Link(), Link()]
    transport, _, losses = run(FenceReason.LEASE_EXPIRED, links, transfers=3)
    assert transport.did == ["sever"] and losses == 1
    assert all(link.severed for link in links)


class Far(Watched):
    """A transport so far away that bytes stay in flight for a while."""

    @property
    def settle_seconds(self) -> float:
        return 0.1


@pytest.mark.parametrize("reason", [FenceReason.WRITER_DEAD, FenceReason.LEASE_EXPIRED])
def test_what_is_on_its_way_has_the_transports_time_to_arrive(reason: FenceReason) -> None:
    waited: list[float] = []

    class Timed(SlowReceiver):
        def wait_settled(self) -> None:
            waited.append(time.monotonic())

    async def scenario() -> None:
        breaker = ConnectionBreaker(Far(), Timed(), list)  # type: ignore[arg-type]
        await breaker.end(Link(), reason)  # type: ignore[arg-type]

    begun = time.monotonic()
    asyncio.run(scenario())
    assert len(waited) == 1 and waited[0] - begun >= 0.1, "settled before it could be there"


async def test_a_fence_of_a_writer_that_drains_nothing_breaks_what_led_here() -> None:
    transport, receiver = Watched(), SlowReceiver()
    receiver.go.set()
    elsewhere = replace(ProcessIdentity.own(), boot_id="another host")
    writer = WriterLife(elsewhere, 0.0, 0.0, 0.0)
    breaker = ConnectionBreaker(transport, receiver, list)  # type: ignore[arg-type]
    fence = Fence(writer.terms(acknowledge=0.0, patience=0.0))
    assert fence.reason(writer.facts(), time.monotonic()) is None
    writer.lose()
    time.sleep(0.001)
    reason = fence.reason(writer.facts(), time.monotonic())
    assert reason is FenceReason.LEASE_EXPIRED
    await breaker.end(writer, reason)
    assert writer.severed and transport.did == ["sever"]
