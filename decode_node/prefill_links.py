"""Prefill nodes of a decode node: their membership, a link to each, and their orderly leaving.

Owns the links and their tasks. Knows of transfers only the connections they use. Thread rule: the
hand-over's event loop; members may be read from any thread.

Invariants: a prefill node's address has at most one link. A leaving link is given no new transfer.
It ends once its last transfer has ended and its node had time to offer its states. So a membership
change breaks nothing in flight.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import grpc

from tasuki.decode_node.config import HandoverSettings
from tasuki.decode_node.prefill_connection import PrefillConnection
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.server.bind import is_loopback
from tasuki.server.discovery.membership import MembershipError
from tasuki.transfer import peer_values
from tasuki.transfer.control.link_status import (
    NodeProgress,
    PrefillNodeState,
    PrefillNodeStatus,
    progress_from_wire,
)
from tasuki.transfer.control.writer_life import unless_timed_out
from tasuki.transfer.errors import PeerInvalid, PeerTimedOut, TransferError
from tasuki.transfer.lifecycle.heartbeats import HeartbeatTimeout, Renewing
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import (
    Contract,
    ContractMismatch,
    Difference,
    diff,
    pictures_pair,
)
from tasuki.transfer.protocol.messages import (
    drain_from_wire,
    node_to_wire,
)
from tasuki.transfer.reports import Drain
from tasuki.transfer.sending.sender import Sender, connect_within, disconnected_within
from tasuki.transfer.transports.base import Transport

log = logging.getLogger(__name__)

_OPTIONS = (
    ("grpc.max_receive_message_length", 32 * 2**20),
    ("grpc.max_send_message_length", 32 * 2**20),
    # A restarted peer must be found at once, not after another channel's backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
# A proxy set in the environment would read traffic meant to stay on this host.
_DIRECT = ("grpc.enable_http_proxy", 0)
_FIELD = "prefill_ca"


@dataclass(frozen=True)
class Dialling:
    """Rule for connecting to prefill nodes: over TLS, or in plain text if no other host can read
    it.

    Prompts, salts and the key to this node's memory are sent to any peer answering at the address.
    Immutable; any thread may use it. Invariant: plain text does not leave this host, unless the
    operator declared the network private. credentials: of TLS; None: plain text. private_network:
    True if plain text may leave this host.
    """

    credentials: grpc.ChannelCredentials | None = None
    private_network: bool = False

    def refusal(self, target: str) -> Difference | None:
        """Return the reason not to connect to the target, HOST:PORT; None if it is allowed. Only
        the name `localhost` counts as loopback, because the addresses of other names may change."""
        if self.credentials is not None or self.private_network or _on_this_host(target):
            return None
        return Difference(
            _FIELD,
            ours="not given, so that prompts would leave this host in plain text: give "
            "--prefill-ca, or pass --insecure on a private network",
            theirs=f"{target} is not on loopback",
        )

    def check(self, target: str) -> None:
        """Raise MembershipError if this node must not connect to the target."""
        refusal = self.refusal(target)
        if refusal is not None:
            raise MembershipError(f"prefill {refusal.theirs}, {refusal.field} is {refusal.ours}")

    def channel(self, target: str) -> grpc.aio.Channel:
        """Return a gRPC channel to the target, HOST:PORT. REQUIRES: refusal(target) is None."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(target, options=(*_OPTIONS, _DIRECT))
        return grpc.aio.secure_channel(target, self.credentials, options=_OPTIONS)


def _on_this_host(target: str) -> bool:
    host = target.rpartition(":")[0]
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return is_loopback(host)


class LinkOwner(Protocol):
    """Owner of the links to prefill nodes, notified on the event loop."""

    def progress(self) -> NodeProgress:
        """Return this node's progress, sent with each renewal."""

    def standing(
        self, link: "PrefillLink", connection: PrefillConnection
    ) -> AbstractContextManager[None]:
        """Return a context manager; the link is inside it for as long as the connection lives."""

    def links_changed(self) -> None:
        """Handle the start or the end of a connection to a prefill node."""

    def loads_changed(self) -> None:
        """Handle new loads reported by the prefill nodes."""

    def node_leaves(self, link: "PrefillLink", connection: PrefillConnection) -> None:
        """Handle a prefill node's notice of its end, with states to pass on; called once for a
        connection."""


class PrefillLink:
    """Link to one prefill node: it connects with the contract, answers heartbeats, notices the
    connection's end and connects again.

    Owns the channel and the live connection. Knows no transfers. Thread rule: the hand-over's event
    loop; status() may be called from any thread. Both nodes may write to each other. A heartbeat
    asks for the prefill node's lease, and a renewal answers it. A renewal asks for this node's
    lease, and the heartbeat confirming it answers.

    Invariants: a heartbeat is answered only on a live connection. After the connection's end none
    is answered, so the prefill node's lease runs out. A broken connection is never used again; a
    new one has a new name.
    """

    def __init__(
        self,
        target: str,
        contract: Contract,
        node: NodeIdentity,
        transport: Transport,
        settings: HandoverSettings,
        sender: Sender,
        dialling: Dialling,
        owner: LinkOwner,
    ) -> None:
        """target: HOST:PORT of the prefill node. sender: writes the bytes of the prefill node's
        pulls."""
        self.target = target
        self.connection: PrefillConnection | None = None
        self.refused: tuple[Difference, ...] = ()
        """Contract fields with different values, if the latest attempt to connect was rejected for
        them; else empty."""
        self.tried = asyncio.Event()
        """Event set once the first attempt to connect has succeeded or failed."""
        self._latest: PrefillConnection | None = None
        """Latest connection, live or not; None before the first."""
        self._contract = contract
        self._node = node
        self._transport = transport
        self._settings = settings
        self._sender = sender
        self._dialling = dialling
        self._owner = owner

    @property
    def takes_transfers(self) -> bool:
        """Return True if new transfers may use this link: it is connected, and its prefill node is
        not ending."""
        connection = self.connection
        return connection is not None and connection.alive and not connection.leaves

    @property
    def leaves(self) -> bool:
        """Return True if this link is connected and its prefill node is ending."""
        return self.connection is not None and self.connection.leaves

    def status(self) -> PrefillNodeStatus:
        # Read each once: the link's loop may change them meanwhile.
        connection, latest, refused = self.connection, self._latest, self.refused
        name = None if latest is None else latest.node.name
        if connection is not None and connection.alive:
            state, progress = PrefillNodeState.CONNECTED, connection.progress
            return PrefillNodeStatus(self.target, name, state, refused, progress)
        state = PrefillNodeState.REFUSED if refused else PrefillNodeState.LOST
        return PrefillNodeStatus(self.target, name, state, refused)

    def connect_again(self, contract: Contract) -> None:
        """End the connection, if any. Use this contract for later ones."""
        self._contract = contract
        if self.connection is not None:
            self.connection.lost.set()

    async def run(self) -> None:
        """Connect, answer heartbeats and reconnect until cancelled. If connecting to the target is
        forbidden, log it once and return; the link stays rejected."""
        refusal = self._dialling.refusal(self.target)
        if refusal is not None:
            self.refused = (refusal,)
            log.warning("prefill node %s, %s is %s", refusal.theirs, refusal.field, refusal.ours)
            self.tried.set()
            return
        pause = self._settings.retry_first
        while True:
            async with self._dialling.channel(self.target) as channel:
                stub = handover_pb2_grpc.HandoverStub(channel)  # type: ignore[no-untyped-call]
                try:
                    connection = await self._connect(stub)
                except (grpc.aio.AioRpcError, TransferError) as error:
                    self._explain(error)
                    self.tried.set()
                except Exception:
                    # A peer's message must not end the link's task, because no caller awaits that
                    # task.
                    log.exception("prefill node %s could not be connected", self.target)
                    self.tried.set()
                else:
                    pause = self._settings.retry_first
                    await self._live(connection)
            await asyncio.sleep(pause)
            if self._latest is not None:
                await disconnected_within(self._settings.silence, self._sender, [self._latest.id])
            pause = min(2 * pause, self._settings.retry_last)

    async def _connect(self, stub: handover_pb2_grpc.HandoverStub) -> PrefillConnection:
        """Connect with the contract; return the connection. Raises ContractMismatch, AioRpcError,
        TransportError."""
        asked_at = time.monotonic()
        answer: pb.ConnectResponse = await stub.Connect(
            pb.ConnectRequest(
                node=node_to_wire(self._node),
                contract=self._contract.flat(),
                pictures=self._contract.pictures,
                lease_seconds=self._sender.settings.lease_seconds,
            ),
            timeout=self._settings.connect,
        )
        if answer.WhichOneof("result") != "connected":
            self.refused = tuple(
                # The rejecting side's own values are the peer's values here.
                Difference(
                    peer_values.shown(d.field),
                    ours=peer_values.shown(d.theirs),
                    theirs=peer_values.shown(d.ours),
                )
                for d in answer.refused.differences[: peer_values.MOST_FIELDS]
            )
            raise ContractMismatch(self.refused, self._contract.flags)
        self.refused = ()
        connection = PrefillConnection(
            *(answer.connected, stub, self._transport, self._settings.write),
            sees_pictures=self._pair_pictures(answer.connected),
        )
        await connect_within(
            self._settings.connect, self._sender, connection.id, connection.node, asked_at
        )
        return connection

    def _pair_pictures(self, connected: pb.Connected) -> bool:
        """Return True if the node may compute prompts with pictures. Log the fields with different
        values. Raises PeerInvalid."""
        ours, theirs = self._contract.pictures, peer_values.contract(connected.pictures)
        if ours and theirs and ours != theirs:
            fields = [difference.field for difference in diff(dict(ours), theirs)]
            log.warning("prefill node %s takes no pictures: %s differ", self.target, fields)
        return pictures_pair(ours, theirs)

    def _explain(self, error: Exception) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            self.refused = ()
            log.debug("prefill node %s: %s %s", self.target, error.code(), error.details())
        else:
            log.warning("prefill node %s: %s", self.target, error)

    async def _live(self, connection: PrefillConnection) -> None:
        self._latest = self.connection = connection
        log.info("prefill node %s (%s) is connected", connection.node.name, self.target)
        beating = asyncio.create_task(self._heartbeat(connection))
        dropping = asyncio.create_task(connection.lost.wait())
        try:
            with self._owner.standing(self, connection):
                self._owner.links_changed()
                self.tried.set()
                await asyncio.wait({beating, dropping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            beating.cancel()
            dropping.cancel()
            connection.end()
            self.connection = None
            self._sender.disconnect(connection.id)
            log.info("prefill node %s (%s) is lost", connection.node.name, self.target)
            self._owner.links_changed()

    async def _heartbeat(self, connection: PrefillConnection) -> None:
        """Answer the connection's heartbeats until they stop coming."""
        call = connection.stub.Heartbeat()
        now = time.monotonic()
        heartbeat_timeout = HeartbeatTimeout(self._settings.silence, now)
        heart = Renewing(heartbeat_timeout, now)
        try:
            await unless_timed_out(
                call.write(connection.renewal(0, self._owner.progress())), heartbeat_timeout
            )
            while connection.alive:
                heartbeat = await unless_timed_out(call.read(), heartbeat_timeout)
                if not isinstance(heartbeat, pb.Beat):
                    return
                asked_at = heart.heartbeat(heartbeat.sequence, heartbeat.received, time.monotonic())
                if heartbeat.HasField("progress"):
                    connection.progress = progress_from_wire(heartbeat.progress)
                if asked_at is not None:
                    self._sender.renew(connection.id, asked_at)
                if heartbeat.HasField("load"):
                    self._take_load(connection, heartbeat.load, asked_at)
                if heartbeat.leaves and not connection.leaves:
                    connection.leaves = True
                    self._owner.node_leaves(self, connection)
                connection.writer.answering()
                renewal = connection.renewal(heartbeat.sequence, self._owner.progress())
                await unless_timed_out(call.write(renewal), heartbeat_timeout)
        except (PeerTimedOut, PeerInvalid) as error:
            log.warning("prefill node %s: %s", self.target, error)
        except grpc.aio.AioRpcError as error:
            log.info("prefill node %s: %s %s", self.target, error.code(), error.details())
        except asyncio.InvalidStateError as error:
            log.debug("heartbeat of %s: %r", self.target, error)
        except Exception:
            log.exception("the heartbeat of %s broke", self.target)
        finally:
            call.cancel()

    def _take_load(
        self, connection: PrefillConnection, load: pb.Load, asked_at: float | None
    ) -> None:
        now = time.monotonic()
        try:
            connection.load.take(load, now if asked_at is None else asked_at, now)
        except PeerInvalid as error:
            log.debug("prefill node %s: %s", self.target, error)
        else:
            self._owner.loads_changed()

    async def abort(
        self, connection: PrefillConnection, transfer_id: int, generation: int, timeout: float
    ) -> Drain | None:
        """Ask by a separate call to abort a transfer of `connection`; return how its writes ended.
        Return None if no answer came within `timeout` seconds.

        The call uses the link's present connection. Another process at the address refuses to
        answer for the transfer.
        """
        now = self.connection
        if now is None:
            return None
        request = pb.AbortRequest(
            room=transfer_id, generation=generation, connection_id=connection.id
        )
        try:
            answer: pb.AbortResponse = await now.stub.Abort(request, timeout=timeout)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            # A channel closed meanwhile raises UsageError.
            log.debug("abort of transfer %d at %s: %r", transfer_id, self.target, error)
            return None
        return drain_from_wire(answer.drain)


LINGER_SECONDS = 5.0
"""Seconds for keeping an idle link after its node left the members. An ending node is first removed
from lists and stores, and then begins to give its states away."""


class PrefillLinks:
    def __init__(self, make: Callable[[str], PrefillLink]) -> None:
        """make: returns a new link to a target, HOST:PORT, not connected yet."""
        self._make = make
        self._links: dict[str, PrefillLink] = {}
        self.members: tuple[PrefillLink, ...] = ()
        """Links to the member prefill nodes, available for transfers, in the order of joining."""
        self._leaving: dict[PrefillLink, float] = {}
        """End of each leaving link's grace time without transfers, in monotonic seconds."""
        self._tasks: dict[PrefillLink, asyncio.Task[None]] = {}

    @property
    def available(self) -> bool:
        return any(link.takes_transfers for link in self._links.values())

    def connect_again(self, contract: Contract) -> None:
        """End all connections. Use this contract for later ones."""
        for link in (*self._links.values(), *self._leaving):
            link.connect_again(contract)

    def follow(self, targets: Iterable[str]) -> None:
        """Make these targets, HOST:PORT each, the member nodes: begin new links, or reuse a link
        still leaving. The links of other nodes leave. REQUIRES: called on the event loop."""
        wanted = dict.fromkeys(targets)
        for target in [target for target in self._links if target not in wanted]:
            log.info("prefill node %s is no member any more", target)
            self._leaving[self._links.pop(target)] = time.monotonic() + LINGER_SECONDS
        for target in wanted:
            if target not in self._links and (back := self._back(target)) is not None:
                self._links[target] = back
            elif target not in self._links:
                link = self._links[target] = self._make(target)
                task = asyncio.get_running_loop().create_task(link.run(), name=f"link-{target}")
                self._tasks[link] = task
        self.members = tuple(self._links.values())

    def _back(self, target: str) -> PrefillLink | None:
        """Return the still connected link of a leaving node, now a member again. A new link would
        end its connection."""
        links = (link for link in self._leaving if link.target == target)
        link = next((link for link in links if link.takes_transfers), None)
        if link is not None:
            del self._leaving[link]
        return link

    @property
    def blind(self) -> list[PrefillLink]:
        """Return the links to connected nodes that compute no prompts with pictures."""
        connected = ((link, link.connection) for link in self._tasks)
        return [link for link, one in connected if one is not None and not one.sees_pictures]

    def any_connected(self, beside: Collection[str]) -> bool:
        """Return True if a member node not in `beside` accepts transfers. beside: HOST:PORT of
        nodes."""
        return any(
            link.takes_transfers for target, link in self._links.items() if target not in beside
        )

    def living(self, target: str) -> PrefillLink | None:
        """Return the target's link if it has a live connection, even a leaving link; else None."""
        links = (link for link in self._tasks if link.target == target)
        return next((link for link in links if link.connection and link.connection.alive), None)

    def closed_to_transfers(self, beside: Iterable[str]) -> list[PrefillLink]:
        """Return the links not to be used for new transfers: links of leaving nodes, and links to
        the targets in `beside`."""
        tried = set(beside)
        members = self._links.items()
        closed = (link for target, link in members if target in tried or link.leaves)
        return [*self._leaving, *closed]

    def end_idle(self, busy: Iterable[PrefillConnection]) -> None:
        """End the links of nodes no longer members, if no live transfer uses them. A usable link
        stays for LINGER_SECONDS. busy: connections with live transfers."""
        used, now = set(busy), time.monotonic()
        for link, until in list(self._leaving.items()):
            if link.connection in used or (link.takes_transfers and now < until):
                continue
            del self._leaving[link]
            if link.connection is not None:
                # End it now: its task ends later, and the connection could be chosen until then.
                link.connection.end()
            self._tasks.pop(link).cancel()

    def lose_all(self) -> None:
        """End every live connection; the links of members then connect again."""
        for link in self._tasks:
            if link.connection is not None:
                link.connection.lost.set()

    async def first_contact(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until each member's first attempt to connect has ended.
        Without this wait the first prompts would be prefilled on this node."""
        attempts = [asyncio.create_task(link.tried.wait()) for link in self._links.values()]
        if attempts:
            _, late = await asyncio.wait(attempts, timeout=timeout)
            for attempt in late:
                attempt.cancel()

    async def stop(self, patience: float) -> None:
        """Cancel the links to all prefill nodes and wait until they have ended, at most `patience`
        seconds."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
