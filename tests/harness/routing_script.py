"""Plays scripts of a decode node choosing among prefill nodes. `nodes NAME...` makes the prefill
nodes; a script drives them by hand over real gRPC. A message of a transfer to a node is shown as
`a: Reserve 5`, one to the decode engine as `decode 5: ...`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from tasuki.decode_node.handover_client import HandoverClient
from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.pycache._cpp_cache import prefix_hashes
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.server.discovery.membership import FixedMembership
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.protocol.messages import node_to_wire
from tests.harness.handover_nodes import (
    GENERATION,
    LIMITS,
    SLABS,
    Inbound,
    grant_of,
    serving,
    transfer_of,
    wanted,
)
from tests.harness.interaction import Look, RealTime
from tests.harness.loopback_pair import Pair, loopback_pair

_NAME_BYTES = 16


class ManualPrefillNode(handover_pb2_grpc.HandoverServicer):
    """A prefill node sending heartbeats by itself; a script decides everything else."""

    def __init__(self, name: str, node: NodeIdentity) -> None:
        self.came: list[str] = []
        self.beats = True
        self.load: pb.Load | None = None
        self.streams = 0
        """Number of streams of usable prefixes opened by the decode node."""
        self._name = name
        self._node = node
        self._connections = 0
        self._usable: asyncio.Queue[pb.UsableBatch | None] = asyncio.Queue()
        self._sequence = 0
        self._said: asyncio.Queue[pb.SenderMessage] = asyncio.Queue()
        self.leaves = False
        self.left: list[pb.TakeOverResponse] = []
        """Prepared answers to the next TakeOver calls, one for each call."""

    def say(self, message: pb.SenderMessage) -> None:
        self._said.put_nowait(message)

    def list(self, batch: pb.UsableBatch) -> None:
        """Send a batch of usable prefixes. A batch without a sequence number gets the next one."""
        self._sequence += 1
        batch.sequence = batch.sequence or self._sequence
        self._usable.put_nowait(batch)

    async def Connect(self, request: pb.ConnectRequest, context: object) -> pb.ConnectResponse:
        self._connections += 1
        name = f"{self._name}-{self._connections}"
        connected = pb.Connected(
            node=node_to_wire(self._node), connection_id=name, lease_seconds=0.2
        )
        return pb.ConnectResponse(connected=connected)

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.Renewal], context: Any
    ) -> AsyncIterator[pb.Beat]:
        sequence = 0
        while self.beats:
            sequence += 1
            load, self.load = self.load, None
            yield pb.Beat(sequence=sequence, received=sequence - 1, load=load, leaves=self.leaves)
            await asyncio.sleep(0.02)

    async def Usable(
        self, request: pb.UsableRequest, context: Any
    ) -> AsyncIterator[pb.UsableBatch]:
        self.streams += 1
        self._sequence = 0
        self._usable = asyncio.Queue()
        while (batch := await self._usable.get()) is not None:
            yield batch

    async def Transfer(
        self, request_iterator: AsyncIterator[pb.ReceiverBatch], context: Any
    ) -> None:
        speaking = asyncio.create_task(self._speak(context))
        try:
            async for batch in request_iterator:
                for message in batch.messages:
                    kind = message.WhichOneof("message")
                    self.came.append(f"{kind} {message.room}")
                    if kind == "abort":
                        drained = pb.Aborted(drain=pb.DRAIN_DRAINED)
                        self.say(pb.SenderMessage(aborted=drained, room=message.room))
        finally:
            speaking.cancel()

    async def TakeOver(self, request: pb.TakeOverRequest, context: Any) -> pb.TakeOverResponse:
        if request.HasField("done"):
            outcome = pb.HeirOutcome.Name(request.done.outcome).removeprefix("HEIR_OUTCOME_")
            self.came.append(f"done {request.done.number} {outcome}")
        if request.declines:
            self.came.append("declines")
        return self.left.pop(0) if self.left else pb.TakeOverResponse()

    async def _speak(self, context: Any) -> None:
        while True:
            await context.write(pb.SenderBatch(messages=[await self._said.get()]))

    async def Abort(self, request: pb.AbortRequest, context: object) -> pb.AbortResponse:
        return pb.AbortResponse(drain=pb.DRAIN_DRAINED)


def _left(transfer_id: int, offered: int) -> m.HandoverWanted:
    asked = wanted(transfer_id)
    transfer_request = replace(asked.transfer_request, offered=offered)
    return replace(asked, transfer_request=transfer_request, purpose=m.Purpose.INHERIT)


class RoutingWorld(RealTime):
    def __init__(self, pair: Pair, stack: contextlib.AsyncExitStack) -> None:
        self.prefill: dict[str, ManualPrefillNode] = {}
        self.decode = Inbound()
        self.client: HandoverClient
        self._pair = pair
        self._stack = stack
        self._read = 0
        self._targets: dict[str, str] = {}

    async def do(self, command: str, words: list[str], named: dict[str, str]) -> Look | None:
        made = getattr(self, command.replace("-", "_"))(*words, **named)
        look: Look | None = await made if asyncio.iscoroutine(made) else made
        return look

    def came(self) -> dict[str, list[str]]:
        tracks: dict[str, list[str]] = {}
        for message in self.decode.messages[self._read :]:
            if isinstance(message, m.PeersChanged):
                continue
            shown = type(message).__name__
            if isinstance(message, m.PassOn):
                known = ", known" if message.state.known else ""
                holder = {target: name for name, target in self._targets.items()}[message.holder]
                shown = f"PassOn({holder}, {len(message.state.prompt)}{known})"
                tracks.setdefault(f"decode pass {message.query_id}", []).append(shown)
                continue
            if isinstance(message, m.HandoverFailed):
                elsewhere = ", elsewhere" if message.elsewhere else ""
                shown = f"{shown}({message.cause.name}{elsewhere})"
            elif isinstance(message, m.FetchLost):
                shown = f"{shown}({message.outcome.name})"
            elif isinstance(message, m.FetchAdvised):
                named = {target: name for name, target in self._targets.items()}
                shown = f"{shown}({named[message.holder]}, {message.tokens})"
            tracks.setdefault(f"decode {transfer_of(message)}", []).append(shown)
        for name, node in self.prefill.items():
            tracks[name] = list(node.came)
        return tracks

    def taken(self) -> None:
        self._read = len(self.decode.messages)
        for node in self.prefill.values():
            node.came.clear()

    async def end(self) -> None:
        return

    async def nodes(self, *names: str, route: str = "auto") -> None:
        contract = Contract("weights", self._pair.target.layout)
        for name in names:
            identity = NodeIdentity.new(
                name, "loopback", self._pair.source.transport.metadata(), SLABS
            )
            node = self.prefill[name] = ManualPrefillNode(name, identity)
            _, port = await self._stack.enter_async_context(serving(node))
            self._targets[name] = f"127.0.0.1:{port}"
        target = self._pair.target
        self.client = HandoverClient(
            self.decode.post,
            self._pair.receiver,
            self._pair.back_sender,
            target.transport,
            contract,
            NodeIdentity.new("decode-0", "loopback", target.transport.metadata(), target.slabs),
            FixedMembership([*self._targets.values()]),
            asyncio.get_running_loop(),
            LIMITS,
            route=route,  # type: ignore[arg-type]
        )
        await self.client.start()
        self._stack.push_async_callback(self.client.stop)
        while any(link.connection is None for link in self.client.links):
            await asyncio.sleep(0.002)
        for name in names if route in ("auto", "cost") else ():
            await self.streams(name, "1")

    def _status(self, name: str) -> Any:
        target = self._targets[name]
        return next(status for status in self.client.statuses() if status.address == target)

    def prompt(self, number: str) -> None:
        """Request a transfer, as the decode engine does."""
        self.client.deliver(wanted(int(number)))

    def prompt_or_advice(self, number: str, offered: str = "0") -> None:
        """Request a transfer, or advice about a node to fetch the prompt's prefix from. offered:
        prompt tokens the engine has itself."""
        asked = wanted(int(number))
        transfer_request = replace(asked.transfer_request, offered=int(offered))
        self.client.deliver(replace(asked, transfer_request=transfer_request, may_fetch=True))

    def fetch(self, name: str, number: str, seconds: str = "30") -> None:
        """Request a fetch of a prefix held by the named node. seconds: time limit."""
        transfer_request = m.FetchRequest(m.TransferId(int(number)), GENERATION, b"salt")
        prompt, holder = wanted(1).prompt[:128], self._targets.get(name, "127.0.0.1:1")
        self.client.deliver(m.FetchWanted(transfer_request, prompt, holder, float(seconds)))

    def grants(self, number: str) -> None:
        grant = grant_of(int(number), self._pair.target.layout)
        self.client.deliver(m.HandoverGranted(grant))

    async def finds_nothing(self, name: str, *numbers: str) -> None:
        """Run transfers to the node one after the other. Each answer reports no cached prefix."""
        for number in numbers:
            self.prompt(number)
            await self._reserved(name, number)
            self.says(name, number, "accepted")
            await self.decode.wait(m.GrantWanted, int(number))
            self.grants(number)
            self.says(name, number, "ready")
            await self.decode.wait(m.RemoteReady, int(number))

    async def _reserved(self, name: str, number: str) -> None:
        while f"reserve {number}" not in self.prefill[name].came:
            await asyncio.sleep(0.002)

    def declines(self, number: str) -> None:
        self.client.deliver(m.HandoverDeclined(m.TransferId(int(number))))

    def says(self, name: str, number: str, what: str) -> None:
        """Send a message of the named node in a transfer or fetch. `what`: name of the message."""
        generation = GENERATION + (what == "held-of-another")
        message = {
            "accepted": pb.SenderMessage(accepted=pb.Accepted()),
            "not-held": pb.SenderMessage(refused=pb.Refused(kind=pb.ERROR_KIND_NOT_HELD)),
            "held": pb.SenderMessage(held=pb.Held(generation=generation)),
            "held-of-another": pb.SenderMessage(held=pb.Held(generation=generation)),
            "ready": pb.SenderMessage(ready=pb.Ready(generation=generation, token=7)),
            "pull": pb.SenderMessage(pull=pb.Pull(generation=1, tokens=64, pages=[1], slot=0)),
            "stop-pull": pb.SenderMessage(stop_pull=pb.StopPull(generation=1)),
            "done": pb.SenderMessage(done=pb.Done(generation=generation)),
            "failed": pb.SenderMessage(failed=pb.Failed(drain=pb.DRAIN_DRAINED)),
            "nothing": pb.SenderMessage(),
        }[what]
        message.room = int(number)
        self.prefill[name].say(message)

    def asks_again(self, before: str, number: str) -> None:
        """Request another transfer for the request of transfer `before`."""
        request = wanted(int(before)).request_id
        self.client.deliver(replace(wanted(int(number)), request_id=request))

    def inherit(self, number: str, offered: str) -> None:
        """Request a transfer for a state left by a draining node. offered: tokens before the
        state."""
        self.client.deliver(_left(int(number), int(offered)))

    def inherit_again(self, before: str, number: str, offered: str) -> None:
        """Request another transfer for the left state of transfer `before`."""
        request = wanted(int(before)).request_id
        self.client.deliver(replace(_left(int(number), int(offered)), request_id=request))

    def cancelled(self, number: str) -> None:
        """Cancel the transfer, as the decode engine does."""
        self.client.deliver(m.HandoverCancelled(m.TransferId(int(number))))

    def refuses(self, name: str, number: str) -> None:
        refused = pb.Refused(kind=pb.ERROR_KIND_DRAINING, reason="it drains")
        self.prefill[name].say(pb.SenderMessage(refused=refused, room=int(number)))

    async def holds(self, name: str, tokens: str) -> None:
        """List this many tokens as usable at the node, of the one prompt all transfers have."""
        end = int(tokens)
        names = prefix_hashes(wanted(1).prompt[:end], b"salt")
        stored = pb.Prefixes(names=names[-1], parents=names[-2], tokens=[end])
        self.lists(name, pb.UsableBatch(snapshot=True, stored=stored))
        await self.knows(name, "1")

    def lists(self, name: str, batch: pb.UsableBatch) -> None:
        self.prefill[name].list(batch)

    def lists_nothing(self, name: str, sequence: str = "0") -> None:
        self.lists(name, pb.UsableBatch(snapshot=True, sequence=int(sequence)))

    def lists_bad(self, name: str, what: str) -> None:
        """Send a malformed list of usable prefixes. No node of this version sends such a list."""
        one = pb.Prefixes(names=b"n" * 16, parents=b"p" * 16, tokens=[PAGE_TOKENS])
        many = 5000
        bad = {
            "gap": pb.UsableBatch(sequence=7, stored=one),
            "again": pb.UsableBatch(sequence=1, stored=one),
            "short-name": pb.UsableBatch(
                stored=pb.Prefixes(names=b"n" * 15, parents=b"p" * 16, tokens=[64])
            ),
            "no-parent": pb.UsableBatch(stored=pb.Prefixes(names=b"n" * 16, tokens=[64])),
            "no-tokens": pb.UsableBatch(
                stored=pb.Prefixes(names=b"n" * 16, parents=b"p" * 16, tokens=[0])
            ),
            "huge": pb.UsableBatch(
                stored=pb.Prefixes(
                    names=b"n" * _NAME_BYTES * many,
                    parents=b"p" * _NAME_BYTES * many,
                    tokens=[64] * many,
                )
            ),
        }[what]
        self.lists(name, bad)

    async def knows(self, name: str, prefixes: str) -> None:
        """Wait until the decode node knows this number of the named node's prefixes."""
        while self._status(name).usable_prefixes != int(prefixes):
            await asyncio.sleep(0.002)

    async def streams(self, name: str, count: str) -> None:
        """Wait until the decode node has opened this number of streams of usable prefixes at the
        named node."""
        while self.prefill[name].streams < int(count):
            await asyncio.sleep(0.002)

    async def load(self, name: str, wait: str, pull: str = "") -> None:
        """Report a node's load, and wait until the decode node has it. wait: seconds of prefill
        ahead; pull: seconds of any pull."""
        load = pb.Load(wait_seconds=float(wait), fixed_seconds=0.01, token_seconds=0.01)
        if pull:
            load.pull_fixed_seconds, load.pull_token_seconds = float(pull), 0.0
        self.prefill[name].load = load
        while self._status(name).wait_seconds != float(wait):
            await asyncio.sleep(0.002)

    async def bad_load(self, name: str, wait: str) -> None:
        """Report a node's load with an invalid value; the decode node receives and ignores it."""
        before = self._status(name).wait_seconds
        self.prefill[name].load = pb.Load(wait_seconds=float(wait))
        while self.prefill[name].load is not None:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
        assert self._status(name).wait_seconds == before

    def queued(self, name: str, number: str, wait: str = "") -> None:
        """Send the named node's answer: the prompt is queued. wait: seconds of the prompts before
        it."""
        queued = pb.Queued(position=1)
        if wait:
            queued.wait_seconds = float(wait)
        self.prefill[name].say(pb.SenderMessage(queued=queued, room=int(number)))

    async def leaves(self, name: str) -> None:
        """Report the named node's drain in its heartbeats, and wait until the decode node knows
        it."""
        self.prefill[name].leaves = True
        links = {link.target: link for link in self.client.links}
        while not links[self._targets[name]].leaves:
            await asyncio.sleep(0.002)

    def gives(self, name: str, number: str, tokens: str, known: str = "") -> None:
        """Offer a state of the draining node to the next TakeOver call. The state is of the one
        prompt all transfers have."""
        state = pb.LeftState(
            number=int(number),
            tokens=wanted(1).prompt[: int(tokens)].astype("<i4").tobytes(),
            salt=b"salt",
            known=bool(known),
        )
        self.prefill[name].left.append(pb.TakeOverResponse(state=state))

    def gives_bad(self, name: str, what: str) -> None:
        bad = {
            "no-tokens": pb.LeftState(number=1),
            "half-a-token": pb.LeftState(number=1, tokens=b"12345"),
            "long-salt": pb.LeftState(number=1, tokens=b"1234", salt=b"s" * 5000),
        }[what]
        self.prefill[name].left.append(pb.TakeOverResponse(state=bad))

    def over(self, name: str) -> None:
        """Answer the next two TakeOver calls: no state is left at the draining node."""
        self.prefill[name].left += [pb.TakeOverResponse(over=True)] * 2

    def passed(self, query: str, outcome: str) -> None:
        """Report from the engine the outcome of a state passed on."""
        self.client.deliver(
            m.StatePassedOn(int(query), m.DrainTargetOutcome[outcome], 1000, "heir")
        )

    async def dies(self, name: str) -> None:
        self.prefill[name].beats = False
        while self._status(name).usable_prefixes is not None:
            await asyncio.sleep(0.002)

    def why(self, number: str) -> Look:
        """Show the reason for the decode node's choice for this transfer's prompt."""

        def look() -> list[str]:
            asked = self.client._asked.get(wanted(int(number)).request_id)
            chosen = None if asked is None else asked.chosen
            return [] if chosen is None else [f"{number} by {chosen.choice.reason.value}"]

        return look

    def expected(self, number: str) -> Look:
        """Show the number of prompt tokens the chosen node is expected to hold."""

        def look() -> list[str]:
            asked = self.client._asked.get(wanted(int(number)).request_id)
            chosen = None if asked is None else asked.chosen
            if chosen is None:
                return []
            return [f"{number}: {chosen.choice.chosen.candidate.usable} tokens expected"]

        return look

    def indexed(self) -> Look:
        return lambda: [f"{len(self.client._router.index)} prefixes in the index"]


@contextlib.asynccontextmanager
async def routing() -> AsyncIterator[RoutingWorld]:
    async with contextlib.AsyncExitStack() as stack:
        pair = stack.enter_context(loopback_pair(slabs=SLABS))
        yield RoutingWorld(pair, stack)
