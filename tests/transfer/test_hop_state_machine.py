"""The real senders and receivers, driven at random along the protocol's tables in both directions,
exact and in fp8.

The tables allow every event of transfers and their layer chunks. Committed data is the sent data at
the wire's precision. After a transfer's fence nothing is written to its ids; a receiver that
decodes in place writes too. Each cell of the sender's staging has one holder.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tasuki.transfer.chunks.chunk import Destination, FinishedLayers
from tasuki.transfer.errors import ChunksMissing, DigestMismatch
from tasuki.transfer.lifecycle.states import (
    PULL,
    Machine,
    ReceiverEvent,
    ReceiverState,
    SenderEvent,
    SenderState,
    receiver_machine,
    sender_machine,
)
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import Drain, TransferBroke, TransferEnd, TransferSent
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.settings import Precision, WirePrecision
from tasuki.transfer.transports.loopback import Fault
from tests.harness.loopback_pair import (
    Node,
    cells_in_use,
    expected_page,
    expected_slot,
    loopback_pair,
    small_layout,
)
from tests.harness.waiting import HANG_SECONDS, until

LAYOUT = small_layout()
PAGES = 3
SLABS_OF_TRANSFER = 1 + -(-PAGES // LAYOUT.pages_per_slab)
SLABS = 4 * SLABS_OF_TRANSFER
FREE = 0x5C
SETTINGS = SenderSettings(
    layers_per_window=2,
    lease_seconds=60.0,
    stall_seconds=60.0,
    drain_seconds=60.0,
    ahead_seconds=60.0,
)


@dataclass
class Direction:
    """One direction of the pair. The tables differ; sender and receiver are the same code."""

    name: str
    sender: Sender
    receiver: Receiver
    source: Node
    target: Node
    peer: str = "peer"
    peers: int = 0
    next_fault: Fault = Fault.NONE
    posts_before_it: int = 0
    chunks_lost: int = 0
    free: list[int] = field(default_factory=lambda: list(range(SLABS)))

    @property
    def back(self) -> bool:
        return self.name == "back"

    def take_fault(self, index: int) -> Fault:
        if self.posts_before_it:
            self.posts_before_it -= 1
            return Fault.NONE
        fault, self.next_fault = self.next_fault, Fault.NONE
        self.chunks_lost += fault is Fault.LOSE
        return fault


@dataclass
class OneTransfer:
    """A transfer. peer: the connection it was opened on; a cut may have ended it."""

    number: int
    way: Direction
    peer: str
    slabs: list[int]
    source_slabs: list[int]
    sender: Machine[SenderState, SenderEvent]
    receiver: Machine[ReceiverState, ReceiverEvent]
    ends: list[TransferEnd] = field(default_factory=list)
    drained: "Future[Drain] | None" = None
    planned: bool = False
    lacks_a_chunk: bool = False

    def is_settled(self, held: list[Any]) -> bool:
        """Return whether its sender can do nothing by itself, because all writes in flight are
        held."""
        sending = self.way.sender._transfers.get(self.number)
        if sending is None:
            return bool(self.ends) or (self.drained is not None and self.drained.done())
        posted = list(sending.posted)
        if not all(any(item.transfer is late for late in held) for item in posted):
            return False
        if sending.stopped:
            return bool(posted)
        # Between the queue and the wire a layer chunk is in neither.
        is_all_posted = len(posted) + len(sending._digests) == sending.next_sequence
        return is_all_posted and not sending.complete

    @property
    def destination(self) -> Destination:
        return Destination(0, *ids_in(self.slabs))

    def says(self, *events: SenderEvent) -> None:
        for event in events:
            self.sender.apply(event)

    def hears(self, *events: ReceiverEvent) -> None:
        for event in events:
            self.receiver.apply(event)

    @property
    def is_quarantined(self) -> bool:
        return self.receiver.state.name == "QUARANTINED"

    @property
    def receives(self) -> bool:
        return self.receiver.state.name in ("GRANTED", "READY")

    @property
    def sends(self) -> bool:
        return self.sender.state.name in ("STREAMING", "READY")


def ids_in(slabs: list[int]) -> tuple[tuple[int, ...], int]:
    """Return (page ids, slot) in a transfer's slabs, the slot in the first."""
    ids = [
        slab * LAYOUT.blocks_per_slab + k
        for slab in slabs[1:]
        for k in range(LAYOUT.pages_per_slab)
    ]
    return tuple(ids[:PAGES]), slabs[0]


def bytes_of(node: Node, slab: int) -> np.ndarray:
    return node.memory[slab * LAYOUT.slab_bytes : (slab + 1) * LAYOUT.slab_bytes]


def computes(transfer: OneTransfer) -> bool:
    return transfer.sends and not transfer.planned


def awaits_token(transfer: OneTransfer) -> bool:
    return not transfer.way.back and transfer.sender.state.name == "STREAMING"


def has_ended(transfer: OneTransfer) -> bool:
    """Return whether the transfer's end may be taken. The first token comes before the final
    status."""
    if not transfer.sends or not transfer.ends:
        return False
    told = transfer.way.back or transfer.sender.state.name == "READY"
    return told or isinstance(transfer.ends[0], TransferBroke)


def lives(transfer: OneTransfer) -> bool:
    return transfer.receives or transfer.sends


def fences(transfer: OneTransfer) -> bool:
    return transfer.is_quarantined and transfer.drained is not None and transfer.drained.done()


def some(fits: Callable[[OneTransfer], bool]) -> Callable[[Any], bool]:
    return lambda machine: any(map(fits, machine.transfers))


class Hops(RuleBasedStateMachine):
    precision = WirePrecision()
    kept_back = 0

    @initialize()
    def begin(self) -> None:
        ways: dict[str, Direction] = {}
        self._context = loopback_pair(
            LAYOUT,
            SLABS,
            faults=lambda index: ways["there"].take_fault(index),
            back_faults=lambda index: ways["back"].take_fault(index),
            settings=SETTINGS,
            precision=self.precision,
            kept_back=self.kept_back,
        )
        pair = self.pair = self._context.__enter__()
        there = Direction("there", pair.sender, pair.receiver, pair.source, pair.target)
        back = Direction("back", pair.back_sender, pair.back_receiver, pair.target, pair.source)
        ways |= {"there": there, "back": back}
        self.ways = ways
        self.transfers: list[OneTransfer] = []
        self.issued = 0
        # Each node's arena has two halves, one to send from and one to receive into.
        for way in ways.values():
            way.free = list(range(SLABS // 2, SLABS))
            rng = np.random.default_rng(7)
            for slab in range(SLABS // 2):
                part = bytes_of(way.source, slab)
                part[:] = rng.integers(0, 256, part.size, dtype=np.uint8)
            for slab in way.free:
                bytes_of(way.target, slab)[:] = FREE

    def chosen(self, pick: int, fits: Callable[[OneTransfer], bool]) -> OneTransfer:
        transfers = [transfer for transfer in self.transfers if fits(transfer)]
        return transfers[pick % len(transfers)]

    @precondition(lambda self: any(way.free for way in self.ways.values()))
    @rule(name=st.sampled_from(["there", "back"]))
    def open_a_transfer(self, name: str) -> None:
        way = self.ways[name]
        if len(way.free) < SLABS_OF_TRANSFER:
            return
        slabs = [way.free.pop() for _ in range(SLABS_OF_TRANSFER)]
        self.issued += 1
        machines = (
            (sender_machine(PULL), receiver_machine(PULL))
            if way.back
            else (sender_machine(), receiver_machine())
        )
        transfer = OneTransfer(
            self.issued, way, way.peer, slabs, list(range(SLABS_OF_TRANSFER)), *machines
        )
        way.receiver.expect(transfer.number, transfer.number, transfer.destination)
        way.sender.open(
            transfer.number, transfer.number, way.peer, transfer.destination, transfer.ends.append
        )
        if way.back:
            transfer.hears(ReceiverEvent.GRANT)
            transfer.says(SenderEvent.ASK, SenderEvent.PINNED)
        else:
            transfer.hears(ReceiverEvent.RESERVE, ReceiverEvent.ACCEPTED, ReceiverEvent.GRANT)
            transfer.says(
                SenderEvent.ARRIVE, SenderEvent.MEET, SenderEvent.ACCEPT, SenderEvent.GRANT
            )
        self.transfers.append(transfer)

    @rule(
        name=st.sampled_from(["there", "back"]),
        fault=st.sampled_from([fault for fault in Fault if fault is not Fault.NONE]),
        posts=st.integers(0, 3),
    )
    def arm(self, name: str, fault: Fault, posts: int) -> None:
        """Make one of the direction's next posts fail."""
        self.ways[name].next_fault, self.ways[name].posts_before_it = fault, posts

    @precondition(some(computes))
    @rule(pick=st.integers(0, 99))
    def finish_layers(self, pick: int) -> None:
        """Run a forward in one direction; in the other, send layers finished long ago."""
        transfer = self.chosen(pick, computes)
        transfer.planned = True
        lost_before = transfer.way.chunks_lost
        pages, slot = ids_in(transfer.source_slabs)
        if transfer.way.back:
            transfer.way.sender.plan_forward(
                transfer.number, FinishedLayers.long_finished(0, pages, slot)
            )
        else:
            first = self.pair.steps.value
            transfer.way.sender.plan_forward(transfer.number, FinishedLayers(first, 0, pages, slot))
            for _ in LAYOUT.layers:
                self.pair.steps.tick()
        self.settle()
        transfer.lacks_a_chunk = transfer.way.chunks_lost > lost_before

    def settle(self) -> None:
        """Wait until nothing moves by itself, so that the next events depend on the rules alone."""
        fabric = self.pair.fabric
        until(
            lambda: all(transfer.is_settled(fabric.held) for transfer in self.transfers),
            "not settled",
        )

    @precondition(some(awaits_token))
    @rule(pick=st.integers(0, 99))
    def first_token(self, pick: int) -> None:
        transfer = self.chosen(pick, awaits_token)
        transfer.says(SenderEvent.TOKEN)
        if transfer.receives:
            transfer.hears(ReceiverEvent.READY)

    @precondition(some(has_ended))
    @rule(pick=st.integers(0, 99))
    def take_the_end(self, pick: int) -> None:
        """Pass the sender's result at a transfer's end to both machines."""
        transfer = self.chosen(pick, has_ended)
        (end,) = transfer.ends
        if isinstance(end, TransferBroke):
            transfer.says(SenderEvent.STOP, SenderEvent.DRAINED)
            transfer.drained = Future()
            transfer.drained.set_result(end.drain)
            if transfer.receives:
                transfer.hears(ReceiverEvent.LOSE)
            return
        assert isinstance(end, TransferSent)
        transfer.says(SenderEvent.FLUSHED)
        transfer.hears(ReceiverEvent.DONE)
        transfer.drained = Future()
        transfer.drained.set_result(Drain.DRAINED)
        if not transfer.is_quarantined:
            self.verify(transfer, end)

    def verify(self, transfer: OneTransfer, end: TransferSent) -> None:
        patience = 0.01 if transfer.lacks_a_chunk else HANG_SECONDS
        try:
            transfer.way.receiver.verify(
                transfer.number, transfer.number, end.report.digests, patience
            )
        except (DigestMismatch, ChunksMissing):
            transfer.hears(ReceiverEvent.LOSE)
            return
        transfer.hears(ReceiverEvent.VERIFIED)
        self.assert_equal(transfer)
        transfer.way.receiver.forget(transfer.number)
        self.release(transfer)

    def assert_equal(self, transfer: OneTransfer) -> None:
        units = WireUnits.of(LAYOUT, self.precision)
        source, target = transfer.way.source, transfer.way.target
        (pages, slot), (sent, state) = ids_in(transfer.slabs), ids_in(transfer.source_slabs)
        for ours, theirs in zip(pages, sent, strict=True):
            assert target.page_bytes(ours) == expected_page(units, source, theirs)
        assert target.slot_bytes(slot) == expected_slot(units, source, state)

    @precondition(some(lives))
    @rule(pick=st.integers(0, 99), how=st.sampled_from(["lose", "stop", "cut"]))
    def disturb(self, pick: int, how: str) -> None:
        """Disturb a transfer. This is one rule, so that transfers complete often enough."""
        transfer = self.chosen(pick, lives)
        if how == "cut":
            self.cut(transfer.way)
        elif how == "stop" and transfer.sends:
            self.stop(transfer)
        elif transfer.receives:
            self.lose(transfer)

    def lose(self, transfer: OneTransfer) -> None:
        """Give up at the receiver; the sender is told to stop later."""
        transfer.hears(ReceiverEvent.LOSE)
        transfer.way.receiver.forget(transfer.number)

    def stop(self, transfer: OneTransfer) -> None:
        transfer.says(SenderEvent.STOP)
        transfer.drained = transfer.way.sender.abort(transfer.number, transfer.peer)
        if transfer.receives:
            transfer.hears(ReceiverEvent.LOSE)
        self.settle()

    def cut(self, way: Direction) -> None:
        """End the connection, as an expired lease does: all its transfers stop, then it is made
        again."""
        way.sender.disconnect(way.peer)
        self.settle()
        way.peers += 1
        way.peer = f"peer-{way.peers}"
        way.sender.connect(way.peer, [way.target.address])

    @rule()
    @precondition(lambda self: self.pair.fabric.held)
    def late_writes_land(self) -> None:
        self.pair.fabric.let_go()
        self.settle()

    @precondition(some(fences))
    @rule(pick=st.integers(0, 99))
    def fence(self, pick: int) -> None:
        transfer = self.chosen(pick, fences)
        assert transfer.drained is not None
        if transfer.drained.result() is Drain.FORCED:
            # Data of the broken transfer may still arrive, so all writes in flight to this node end
            # first.
            transfer.way.target.transport.sever()
            self.settle()
        if transfer.sender.state.name == "DRAINING":
            transfer.says(SenderEvent.DRAINED)
        transfer.way.receiver.forget(transfer.number)
        transfer.hears(ReceiverEvent.FENCED)
        self.release(transfer)

    def release(self, transfer: OneTransfer) -> None:
        self.transfers.remove(transfer)
        for slab in transfer.slabs:
            bytes_of(transfer.way.target, slab)[:] = FREE
        transfer.way.free += transfer.slabs

    @invariant()
    def nothing_is_written_to_ids_that_are_free(self) -> None:
        for way in getattr(self, "ways", {}).values():
            for slab in way.free:
                assert (bytes_of(way.target, slab) == FREE).all(), f"{way.name}: slab {slab}"

    @invariant()
    def a_transfer_ends_once_at_most(self) -> None:
        for transfer in getattr(self, "transfers", []):
            assert len(transfer.ends) <= 1

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        try:
            self.pair.fabric.let_go()
            for transfer in list(self.transfers):
                transfer.way.sender.abort(transfer.number, transfer.peer).result(HANG_SECONDS)
                transfer.way.receiver.forget(transfer.number)
                self.release(transfer)
            self.nothing_is_written_to_ids_that_are_free()
        finally:
            self._context.__exit__(None, None, None)
        if not self.precision.exact:
            assert cells_in_use(*(way.source for way in self.ways.values())) == 0


class EncodedHops(Hops):
    precision = WirePrecision(Precision.FP8, Precision.FP8)
    # So large that no layer chunk is cut, and all of both transfers of a direction may be held on
    # the wire at once. A post must not depend on other transfers.
    kept_back = 8


TestHops = Hops.TestCase
TestHops.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEncodedHops = EncodedHops.TestCase
TestEncodedHops.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
