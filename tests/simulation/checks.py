"""Checks at every step of a simulation of two nodes, and at its end.

The promises of docs/faults.md:

1. Only whole data is committed.
2. Each request ends once, right or with a reason.
3. Ids are accounted for, and at the end nothing is held.
4. No write arrives outside a destination (bytes.py).

Also every wait is bounded: a live side of a transfer has a next check, leaves each state in time,
and ends in time.
"""

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from tasuki.transfer.lifecycle.actions import Action
from tasuki.transfer.lifecycle.events import Event
from tasuki.transfer.lifecycle.fence import ALIVE, FenceReason
from tasuki.transfer.lifecycle.messages import Done, Ended, Message, Refused
from tasuki.transfer.lifecycle.receiving import Receiving
from tasuki.transfer.lifecycle.states import PULL, DrainBy, ReceiverState
from tasuki.transfer.reports import Drain

from .bytes import LEASE
from .sides import SimulatedSide
from .world import OF_CHUNKS, OF_MESSAGES, Fault, Violation, World

if TYPE_CHECKING:
    from .desks import DecodeDesk, Outcome, PrefillDesk, Request
    from .peers import Connection

_QUARANTINE_BOUND = 40.0
"""Longest accepted quarantine in virtual seconds: the timeout, the drain request, the lease and the
severing, with a frozen node."""
_STATE_BOUND = 200.0
_LIFE_BOUND = 400.0
_LATE = 1.0
_NOTICED = 30.0
"""Longest accepted time until an ended stream is noticed, in virtual seconds: a drain, its
deadline, and a frozen node."""


class Checks:
    def __init__(self, world: World) -> None:
        self.world = world
        self.connections: dict[str, Connection] = {}
        self.decode_desk: DecodeDesk
        self.prefill_desk: PrefillDesk
        self.outcomes: Counter[Outcome] = Counter()
        self.kinds: Counter[str] = Counter()
        self.struck: Counter[Fault] = Counter()
        self.touched: set[int] = set()
        """Ids of the transfers hit by a fault."""
        self.requests: list[Request] = []
        self.by_transfer: dict[int, Request] = {}
        """The last request for each transfer id."""
        self.last_words: dict[int, list[Message]] = {}
        """Final messages of transfers by transfer id, to be repeated to the next transfer with this
        id."""
        self.doubles = False
        """True if transfer ids are reused at once and many messages are repeated later."""
        self._living: set[SimulatedSide] = set()
        self._tokens: set[int] = set()
        self._ended: set[tuple[str, int, int]] = set()
        """Ends already sent to an engine: (kind of transfer, its generation, life of its node).
        Each may be sent once."""

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)

    # Faults

    def strike(self, fault: Fault, transfer_id: int) -> None:
        self.struck[fault] += 1
        self.touched.add(transfer_id)

    def strike_all(self, fault: Fault) -> None:
        """Record a fault of a node or of the network for all live transfers."""
        for transfer_id in {side.transfer_id for side in self._living}:
            self.strike(fault, transfer_id)

    def _due(self, transfer_id: int, kinds: tuple[Fault, ...]) -> Fault | None:
        request = self.by_transfer.get(transfer_id)
        if request is None or not request.faults:
            return None
        for place, (fault, left) in enumerate(request.faults):
            if fault not in kinds:
                continue
            if left > 0:
                request.faults[place] = fault, left - 1
                continue
            del request.faults[place]
            if fault is not Fault.CUT:
                # A cut affects all transfers of the stream.
                self.strike(fault, transfer_id)
            return fault
        return None

    def message_fault(self, transfer_id: int) -> Fault | None:
        fault = self._due(transfer_id, OF_MESSAGES)
        if fault is None and self.doubles and self.world.random.random() < 0.25:
            return Fault.DUPLICATION
        return fault

    def chunk_fault(self, transfer_id: int) -> Fault | None:
        return self._due(transfer_id, OF_CHUNKS)

    # Sides

    @property
    def lives(self) -> bool:
        """Return True if any side of a transfer is alive."""
        return bool(self._living)

    def began(self, side: SimulatedSide) -> None:
        self._living.add(side)
        side.peer.sides.add(side)
        self.kinds[side.side.kind.name] += isinstance(side.side, Receiving)

    def died(self, side: SimulatedSide) -> None:
        self._living.discard(side)

    def ended(self, side: SimulatedSide, failure: Exception | None) -> None:
        self._living.discard(side)
        side.peer.sides.discard(side)
        if failure is not None:
            raise Violation(f"{side.name} cannot go on") from failure
        self.require(side.side.is_over, f"{side.name} is over in {side.side.state}")
        machine = side.side
        if not isinstance(machine, Receiving) and machine.drain is Drain.DRAINED:
            posted = side.peer.leaving.transfers.get(side.transfer_id)
            self.require(
                posted is None or posted.generation != machine.generation,
                f"{side.name} is over while it may send",
            )

    def stepped(self, side: SimulatedSide, event: Event) -> None:
        """Check a transfer's side after an event: it stays in no state too long."""
        self.world.steps += 1
        machine = side.side
        if isinstance(machine, Receiving) and not side.drain_believed:
            self._look_at_drain(side, machine)
        if machine.is_over:
            return
        now, state = side.now(), machine.state
        before, since = side.state_since
        if state is not before:
            side.state_since = state, now
            return
        is_lost = isinstance(machine, Receiving) and machine.is_lost
        bound = _QUARANTINE_BOUND if is_lost else _STATE_BOUND
        self.require(now - since < bound, f"{side.name} stays {state.name}")

    def performs(self, side: SimulatedSide, action: Action) -> None:
        """Check an action of a transfer's side. Subclasses record it."""

    def _look_at_drain(self, side: SimulatedSide, machine: Receiving) -> None:
        """Check a drain a receiver accepted: its writer must have stopped."""
        if machine.fence.reason(ALIVE, side.now()) is not FenceReason.DRAIN_ACKNOWLEDGED:
            return
        side.drain_believed = True
        writer = side.connection.other(side.peer)
        out = writer.leaving.transfers.get(side.transfer_id)
        writes = out is not None and out.generation == machine.generation
        self.require(
            not (writes and side.connection.is_same_life(writer)),
            f"{side.name} believes a drain of a writer that has not drained",
        )

    def said(self, side: SimulatedSide, message: Message) -> None:
        """Check a sender's message: only one is final, and nothing follows it."""
        self.require(side.finals == 0, f"{side.name} says {message} after its end")
        side.finals += isinstance(message, Done | Ended | Refused)

    def look(self) -> None:
        """Check every live side of a transfer: it has a next check, and ends in time."""
        for side in self._living:
            node = side.peer.node
            if not side.lives or node.is_frozen or side._stepping:
                continue
            is_looked_at = side.looks_at is not None and side.now() - side.looks_at < _LATE
            self.require(is_looked_at, f"{side.name} waits without a bound")
            self.require(self.world.now - side.born < _LIFE_BOUND, f"{side.name} never ends")
            self._look_at_stream(side)

    def _look_at_stream(self, side: SimulatedSide) -> None:
        """Check a side with an ended stream: it ends soon."""
        if not side.stream.over[side.peer]:
            side.stream_over_at = self.world.now
        elif isinstance(side.side, Receiving):
            waits = not (side.side.is_lost or side.side.state is ReceiverState.VERIFYING)
            since = self.world.now - side.stream_over_at
            self.require(since < _NOTICED or not waits, f"{side.name} awaits a stream that is over")
        elif side.side.kind is not PULL:
            since = self.world.now - side.stream_over_at
            self.require(since < _NOTICED, f"{side.name} goes on for nobody")

    def gives_up(self, side: SimulatedSide, asked: bool) -> None:
        """Check a receiver giving up its connection, with all transfers on it, for want of one
        drain. It must have requested the drain before. asked: True if it did."""
        can_ask = side.side.kind.drain_by is DrainBy.CALL
        self.require(asked or not can_ask, f"{side.name} never asked for the drain that it awaits")

    def severing(self, side: SimulatedSide, reason: FenceReason) -> None:
        """Check a fence's stated reason: it must be true of the writer."""
        connection, owner = side.connection, side.peer
        writer = connection.other(owner)
        if not connection.is_same_life(writer):
            return
        self.require(reason is not FenceReason.WRITER_DEAD, f"{side.name}: its writer lives")
        out = writer.leaving.transfers.get(side.transfer_id)
        if out is None or out.generation != side.side.generation or out.stopped_at < inf:
            return
        if reason is FenceReason.DRAIN_ACKNOWLEDGED:
            raise Violation(f"{side.name} is fenced by a drain while its writer may write")
        lease = writer.leaving.leases.writable(connection.name)
        if lease is not None and not side.side.fence.answered:
            raise Violation(f"{side.name} is fenced while its writer's lease of {LEASE} s holds")

    # Requests

    def asked(self, request: "Request") -> None:
        self.requests.append(request)
        self.by_transfer[request.transfer_id] = request

    def ready(self, transfer_id: int, generation: int, token: int) -> None:
        """Check a transfer's first token: it is its own generation's, not another's."""
        self.require(token == generation, f"transfer {transfer_id} has the token of {token}")
        self.require(generation not in self._tokens, f"transfer {transfer_id} has its token twice")
        self._tokens.add(generation)

    def told_lost(self, name: str, generation: int, life: int = 0) -> None:
        key = name, generation, life
        self.require(key not in self._ended, f"{name} of {generation} is lost when it is over")
        self._ended.add(key)

    def committed(self, name: str, generation: int, life: int = 0) -> None:
        key = name, generation, life
        self.require(key not in self._ended, f"{name} of {generation} is done when it is over")
        self._ended.add(key)

    def answered(self, request: "Request", outcome: "Outcome") -> None:
        if request.outcome is not None:
            if request.outcome.name == "GONE":
                return
            raise Violation(
                f"transfer {request.transfer_id} ended {request.outcome}, and {outcome}"
            )
        request.outcome = outcome
        self.outcomes[outcome] += 1

    # The end

    def nothing_is_left(self) -> None:
        decode, prefill = self.decode_desk, self.prefill_desk
        self.require(not self._living, f"still there: {[side.name for side in self._living]}")
        for request in self.requests:
            self.require(request.outcome is not None, f"transfer {request.transfer_id} never ended")
        for desk in (decode, prefill):
            arena = desk.peer.arena
            owners = {owner for owner in arena.owners if owner[0] != "free"}
            self.require(not owners, f"{desk.peer.node.name} holds ids of {sorted(owners)}")
            self.require(arena.free == desk.peer.ids, "ids are lost")
            self.require(not desk.peer.leaving.transfers, "windows are still sent")
        self.require(not decode.quarantined, "a quarantine is left")
