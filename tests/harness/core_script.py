"""Plays scripts of transfers between two simulated nodes: the pure core of the protocol on a
virtual clock.

The script drives both engines. The simulation's checks hold at each step. A command with a
message's name is that message of an engine: `HandoverCancelled 5`. Other commands are methods of
CoreWorld. Messages to an engine are shown as `decode 5: GrantWanted -> RemoteReady`. Messages of a
pull are shown as `prefill 5 pull: ...`.
"""

import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Action
from tasuki.transfer.lifecycle.receiving import Receiving
from tasuki.transfer.lifecycle.sending import Sending
from tasuki.transfer.lifecycle.states import HANDOVER, PULL
from tests.harness.interaction import Look
from tests.harness.waiting import HANG_SECONDS
from tests.simulation.checks import Checks
from tests.simulation.desks import DecodeDesk, PrefillDesk, Request
from tests.simulation.history import SimulatedPair
from tests.simulation.peers import Peer
from tests.simulation.sides import SimulatedSide
from tests.simulation.world import Fault, World

_COMES = {
    (Receiving, False): {
        do.WantGrant: "GrantWanted",
        do.TellReady: "RemoteReady",
        do.Commit: "RemoteDone",
        do.TellFenced: "WriterFenced",
    },
    (Receiving, True): {
        do.Commit: "PullCommitted",
        do.TellLost: "PullLost",
        do.TellFenced: "PullFenced",
    },
    (Sending, False): {do.Reserve: "PrefillReserve", do.Start: "PrefillStart"},
    (Sending, True): {do.Reserve: "PullAsked"},
}
"""Names of the messages to an engine, by the transfer's side and True for a pull, then by the
side's action."""
_REST, _LAST = 400.0, 5.0
"""Virtual seconds for all transfers of a script to end, and for the last write and decoding."""


class Even(random.Random):
    """A random source always returning the middle of a range."""

    def random(self) -> float:
        return 0.5


class Followed(Checks):
    """The simulation's checks, also recording the messages to each engine by track (node, transfer,
    pull)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.came: dict[str, list[str]] = {}

    def performs(self, side: SimulatedSide, action: Action) -> None:
        machine = side.side
        shown = _COMES[type(machine), machine.kind is PULL].get(type(action))
        match action:
            case do.TellLost(reason=reason, loss=loss) if machine.kind is not PULL:
                shown = f"HandoverFailed({loss.name}: {reason})"
            case do.TellRefused(payload=reason):
                shown = f"HandoverFailed(REFUSED: {reason})"
        if shown is not None:
            self._note(side, shown)

    def ended(self, side: SimulatedSide, failure: Exception | None) -> None:
        super().ended(side, failure)
        machine = side.side
        if isinstance(machine, Sending):
            cause = "" if machine.given_up is None else f"({machine.given_up.name})"
            self._note(side, "PullEnd" if machine.kind is PULL else f"PrefillEnd{cause}")

    def _note(self, side: SimulatedSide, shown: str) -> None:
        of_pull = " pull" if side.side.kind is PULL else ""
        track = f"{side.peer.node.name} {side.transfer_id}{of_pull}"
        self.came.setdefault(track, []).append(shown)


class ScriptedDecode(DecodeDesk):
    """A decode node granting destinations and pinning pulled prefixes only on command."""

    def _grant(self, request: Request) -> None:
        return

    def _pin(self, request: Request) -> None:
        return

    def grant(self, transfer_id: int) -> None:
        super()._grant(self.requests[transfer_id])

    def pin(self, transfer_id: int) -> None:
        request = self.requests.get(transfer_id)
        if request is not None:
            super()._pin(request)

    def cancel(self, transfer_id: int) -> None:
        self._cancel(self.requests[transfer_id])


class ScriptedPrefill(PrefillDesk):
    """A prefill node pulling, leasing, computing and announcing only on command."""

    def _admit(self, computed: object) -> None:
        return

    def _compute(self, computed: object) -> None:
        return

    def admit(self, transfer_id: int) -> None:
        """Admit a transfer: first pull the offered state, once; the next time lease pages for the
        transfer."""
        super()._admit(self._computed[transfer_id])

    def compute(self, transfer_id: int) -> None:
        self.peer.leaving.plan(transfer_id, self._computed[transfer_id].source or ())

    def announce(self, transfer_id: int) -> None:
        request = self._computed[transfer_id].request
        self.transfers[transfer_id].put(on.Announced(request.generation))


class CoreWorld(SimulatedPair):
    """Two connected simulated nodes, with a script's commands as methods."""

    look, still = 0.05, 20.0

    def __init__(self) -> None:
        world = World(1)
        world.random = Even()
        self._followed = Followed(world)
        super().__init__(world, self._followed, (ScriptedDecode, ScriptedPrefill))
        self._faults: dict[int, list[tuple[Fault, int]]] = {}
        self._generations = 0
        self._drains = True
        world.at(0.0, self._connect)
        world.at(1.0, self._look)
        world.run(0.1)

    @property
    def _decode(self) -> ScriptedDecode:
        desk = self.checks.decode_desk
        assert isinstance(desk, ScriptedDecode)
        return desk

    @property
    def _prefill(self) -> ScriptedPrefill:
        desk = self.checks.prefill_desk
        assert isinstance(desk, ScriptedPrefill)
        return desk

    # For the player

    def now(self) -> float:
        return self.world.now

    async def sleep(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def came(self) -> dict[str, list[str]]:
        return self._followed.came

    def taken(self) -> None:
        self._followed.came = {}

    async def end(self) -> None:
        """Wait until no transfer is left, unless a drain was made to hang."""
        until = self.world.now + _REST
        while self._followed.lives and self.world.now < until:
            self.world.run(self.world.now + _LAST)
        self.world.run(self.world.now + _LAST)
        if self._drains:
            self.checks.nothing_is_left()

    async def do(self, command: str, words: list[str], named: dict[str, str]) -> Look | None:
        if command[0].isupper():
            self._deliver(command, int(words[0]), *words[1:])
            return None
        look: Look | None = getattr(self, command.replace("-", "_"))(*words, **named)
        return look

    def _until(self, holds: Callable[[], object]) -> None:
        end = self.world.now + HANG_SECONDS
        while not holds():
            assert self.world.now < end, "it does not come"
            self.world.run(self.world.now + 0.005)

    # Before transfers begin

    def faults(self, number: str, *faults: str) -> None:
        """Set the faults of a transfer before it begins: `faults 5 flip@1`. The number after `@` is
        the layer chunk's or message's."""
        parts = (fault.partition("@") for fault in faults)
        self._faults[int(number)] = [
            (Fault[name.replace("-", "_").upper()], int(place or 0)) for name, _, place in parts
        ]

    def deadlines(self, of: str, **seconds: str) -> None:
        """Change the deadlines of a transfer's side. `of`: `decode`, `prefill`, or the side of a
        pull, `decode-pull`."""
        node, _, pull = of.partition("-")
        desk = {"decode": self._decode, "prefill": self._prefill}[node]
        name = "pull_deadlines" if pull else "deadlines"
        changed = {state: float(value) for state, value in seconds.items()}
        setattr(desk, name, replace(getattr(desk, name), **changed))

    # The stage to reach in a transfer

    def reserve(self, *numbers: str) -> None:
        for number in map(int, numbers):
            self._ask(number, offers=False)

    def _ask(self, transfer_id: int, *, offers: bool) -> None:
        if transfer_id in self._decode.transfers:
            return
        self._generations += 1
        request = Request(HANDOVER, transfer_id, self._generations, offers)
        request.faults = self._faults.pop(transfer_id, [])
        self.checks.asked(request)
        self._decode.ask(request)
        self._until(
            lambda: (
                transfer_id in self._prefill.transfers or transfer_id not in self._decode.transfers
            )
        )

    def pull(self, number: str) -> None:
        """Begin a transfer offering a state, and wait for the pull at the decode node."""
        transfer_id = int(number)
        self._ask(transfer_id, offers=True)
        self._prefill.admit(transfer_id)
        self._until(lambda: transfer_id in self._decode.pulls)

    def accept(self, *numbers: str) -> None:
        for number in numbers:
            self.reserve(number)
            if self._prefill._computed[int(number)].source is None:
                self._prefill.admit(int(number))
            self._state(int(number), "ACCEPTED", "GRANTED")

    def grant(self, *numbers: str) -> None:
        for number in numbers:
            self.accept(number)
            if int(number) not in self._decode.granted:
                self._decode.grant(int(number))
            this_transfer = self._prefill.transfers[int(number)]
            self._until(
                lambda transfer=this_transfer: (
                    transfer.side.state.name not in ("QUEUED", "ACCEPTED")
                )
            )

    def compute(self, *numbers: str) -> None:
        for number in numbers:
            self._prefill.compute(int(number))

    def hand_over(self, *numbers: str) -> None:
        for number in numbers:
            self.grant(number)
            self.compute(number)
            self._prefill.announce(int(number))

    def _state(self, transfer_id: int, *names: str) -> None:
        """Wait until the transfer's side at the decode node is in one of the named states."""
        self._until(lambda: self._decode.transfers[transfer_id].side.state.name in names)

    # Messages of engines

    def _deliver(self, name: str, transfer_id: int, *words: str) -> None:
        decode, prefill = self._decode, self._prefill
        match name:
            case "HandoverCancelled":
                decode.cancel(transfer_id)
            case "HandoverDeclined":
                decode.transfers[transfer_id].put(on.Declined())
            case "HandoverGranted":
                # Ids rejected by the prefill node.
                generation = decode.requests[transfer_id].generation
                wrong = Destination(0, (10**6,), 0)
                decode.transfers[transfer_id].put(say.Grant(generation, wrong))
            case "PullPinned":
                decode.pin(transfer_id)
            case "PullRefused":
                decode.pulls[transfer_id].put(on.Refusal(words[0]))
            case "PrefillQueue":
                prefill.transfers[transfer_id].put(on.Moved(int(words[0])))
            case "PrefillAccepted":
                prefill.admit(transfer_id)
            case "PrefillToken":
                prefill.announce(transfer_id)
            case "PrefillRefused":
                reason, *late = words
                prefill.transfers[transfer_id].put(on.Refusal(reason, bool(late), reason))
            case _:
                raise LookupError(name)

    def queue_moves(self, number: str) -> None:
        """Move the transfer forward and back in the prefill queue while it is alive."""
        side = self._prefill.transfers[int(number)]

        def moves(position: int) -> None:
            side.put(on.Moved(position))
            if not side.is_over:
                side.peer.node.after(0.3, lambda: moves(1 - position))

        moves(1)

    # The nodes, and the network between them

    def _peer_of(self, node: str) -> Peer:
        return {"decode": self.decode, "prefill": self.prefill}[node]

    def kill(self, node: str) -> None:
        self._kill(self._peer_of(node))

    def freeze(self, node: str, seconds: str) -> None:
        self._peer_of(node).node.freeze(float(seconds))

    def silence(self, seconds: str) -> None:
        self._link.silent_until = self.world.now + float(seconds)

    def lose_link(self) -> None:
        assert self.decode.connection is not None
        self.decode.connection.lose(self.decode)

    def new_link(self) -> None:
        """Wait until both nodes have a live connection."""

        def is_up() -> bool:
            connection = self.decode.connection
            return connection is not None and not any(connection.lost.values())

        self._until(is_up)

    def link(self) -> Look:
        return lambda: [f"link {'down' if self.decode.connection is None else 'up'}"]

    def wait(self, seconds: str) -> None:
        self.world.run(self.world.now + float(seconds))

    def hangs(self, what: str) -> None:
        """Make an action hang at both nodes. `what`: `verify` or `abort`."""
        for peer in (self.decode, self.prefill):
            if what == "verify":
                peer.landing.verify = lambda *_: None  # type: ignore[method-assign]
                for side in peer.sides:
                    side._verify_later = lambda *_: None  # type: ignore[attr-defined]
            else:
                peer.leaving.abort = lambda *_: None  # type: ignore[method-assign]
                self._drains = False

    def drain(self, number: str) -> Look:
        """Show the transfer's drain in the prefill node's record of ended transfers."""
        request = self.checks.by_transfer[int(number)]
        names = list(self.checks.connections)

        def look() -> list[str]:
            ended = self._prefill.ended.drain(names[-1], request.transfer_id, request.generation)
            return [f"drain {'None' if ended is None else ended.name}"]

        return look


@contextlib.asynccontextmanager
async def core() -> AsyncIterator[CoreWorld]:
    yield CoreWorld()
