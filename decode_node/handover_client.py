"""Receiving half of hand-overs: links to prefill nodes, and a transfer for each prompt sent to one.

Owns live transfers, and the links through `prefill_links`. Turns engine messages into transfers'
events and back; knows no bytes and no caches.

Thread rule: the hand-over's event loop; deliver() may be called from any thread.

Invariants: every HandoverWanted is answered, because the engine waits for the answer without a
deadline of its own. The answer comes immediately if no prefill node is connected. It comes also if
a transfer fails in an unforeseen way. A transfer unknown to this client has no writer. So a
destination or a cancellation arriving after its end is answered as fenced immediately.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from tasuki.decode_node.config import HandoverSettings
from tasuki.decode_node.passing_on import PassingOn
from tasuki.decode_node.prefill_connection import PrefillConnection
from tasuki.decode_node.prefill_links import LINGER_SECONDS, Dialling, PrefillLink, PrefillLinks
from tasuki.decode_node.prefill_router import Chosen, Holder, PrefillRouter
from tasuki.decode_node.transfers import (
    IncomingFetch,
    IncomingHandover,
    IncomingTransfer,
    PullSender,
    SharedMeans,
    event_of,
)
from tasuki.engine import messages as m
from tasuki.pycache.keys import Keys, has_pictures, repeat_last
from tasuki.routing.node_choice import RouteName
from tasuki.server.discovery.membership import Membership
from tasuki.transfer.control.driven_transfer import LiveTransfers
from tasuki.transfer.control.link_status import NodeProgress, PrefillNodeStatus
from tasuki.transfer.control.writer_life import ConnectionBreaker, WriterLife
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Loss
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.transports.base import Transport

log = logging.getLogger(__name__)

_BUSY_SECONDS = 0.5
"""Least seconds between two reports to the engine about the load of all prefill nodes."""
_FETCH_SLACK = 4.0
"""Time limit of a fetch, as a multiple of the time to compute the fetched tokens. It is limited by
_FETCH_LEAST and _FETCH_MOST seconds."""
_FETCH_LEAST, _FETCH_MOST = 2.0, 10.0
_HOLDERS_FAULT = frozenset({m.FetchOutcome.LATE, m.FetchOutcome.LOST})
_NOT_FETCHED_FROM_SECONDS = 60.0
"""Seconds without fetches from a prefill node after it failed one. A node listing many prefixes
without their data must not delay every prompt."""


@dataclass
class _Asked:
    """Attempts to prefill one prompt on prefill nodes.

    tried: HOST:PORT of nodes already tried, not tried again. chosen: choice of the latest node.
    moves_to: node to move the prompt to, because it can begin sooner; None: no move. moved_from:
    node the prompt was moved from; empty before a move. A prompt moves once.
    """

    tried: tuple[str, ...] = ()
    chosen: Chosen | None = None
    moves_to: str | None = None
    moved_from: str = ""

    def move(self) -> None:
        """Record the move of the prompt to the second-best node of its choice. REQUIRES: the choice
        has a second node."""
        assert self.chosen is not None
        # The node is not at fault: it may be asked again if the other one is lost.
        self.tried = self.tried[:-1]
        self.moves_to, self.moved_from = self.chosen.second, self.chosen.link.target


def _untraced(request: m.RequestId) -> str:
    return ""


class HandoverClient:
    """Receiving half of hand-overs, with all links and transfers of a decode node. Implements
    LinkOwner too."""

    def __init__(
        self,
        post: m.Post,
        receiver: Receiver,
        sender: Sender,
        transport: Transport,
        contract: Contract,
        node: NodeIdentity,
        membership: Membership,
        loop: asyncio.AbstractEventLoop,
        settings: HandoverSettings | None = None,
        dialling: Dialling | None = None,
        traceparent: Callable[[m.RequestId], str] = _untraced,
        progress: Callable[[], NodeProgress] = NodeProgress,
        route: RouteName = "auto",
        pull_tokens: int = 32,
    ) -> None:
        """post: sends a message to the engine. loop: the hand-over's event loop; all methods but
        deliver() and links run on it. dialling: rule for connecting; by default in plain text, and
        on this host only. traceparent: returns the `traceparent` of a live request's span, empty if
        it has none. progress: returns this node's progress. route: policy to choose a prompt's
        prefill node. pull_tokens: least tokens worth a pull before any measurement."""
        self._contract = contract
        self._pull_tokens = pull_tokens
        self._traceparent = traceparent
        self._post = post
        self._loop = loop
        self._settings = settings or HandoverSettings()
        self._sender = sender
        self._transfers: LiveTransfers[m.TransferId, IncomingHandover] = LiveTransfers(self._over)
        self._pulls: LiveTransfers[m.TransferId, PullSender] = LiveTransfers()
        self._fetches: LiveTransfers[m.TransferId, IncomingFetch] = LiveTransfers(self._fetch_over)
        self._asked: dict[m.RequestId, _Asked] = {}
        """Attempts of each prompt given to prefill nodes, by request, until it is received,
        cancelled or prefilled on this node."""
        breaker = ConnectionBreaker(transport, receiver, self._lose_all)
        self._shared = SharedMeans(receiver, breaker, self._settings)
        self._unanswered: set[m.TransferId] = set()
        """Transfers with an end not reported to the engine yet."""
        self._available = False
        self._busy = m.PrefillBusy(0.0)
        self._busy_looked_at = -math.inf
        self._membership = membership.changes()
        self._following: asyncio.Task[None] | None = None
        self._router = PrefillRouter(route, node.name)
        self.standing = self._router.standing
        self.progress = progress
        dials = dialling or Dialling()
        self._links = PrefillLinks(
            lambda target: PrefillLink(
                target, self._contract, node, transport, self._settings, sender, dials, self
            )
        )
        self._passing = PassingOn(
            post,
            lambda: self._links.available,
            self._is_left_elsewhere,
            self._end_idle_links,
        )

    @property
    def links(self) -> tuple[PrefillLink, ...]:
        """Return the links to the present prefill nodes. It may be called from any thread."""
        return self._links.members

    def statuses(self) -> tuple[PrefillNodeStatus, ...]:
        """Return the status of each link, with the known cache and load of its node. It may be
        called from any thread."""
        return tuple(self._status(link) for link in self.links)

    def _status(self, link: PrefillLink) -> PrefillNodeStatus:
        connection = link.connection
        if connection is None:
            return link.status()
        return replace(
            link.status(),
            usable_prefixes=self._router.listed(connection),
            wait_seconds=connection.load.reported_wait,
        )

    async def start(self) -> None:
        """Begin to connect. Return once each prefill node is connected or its first attempt has
        failed. Wait at most `connect` seconds of the settings. Raises MembershipError."""
        self._links.follow(await anext(self._membership))
        self._following = self._loop.create_task(self._follow(), name="membership")
        await self._links.first_contact(self._settings.connect)

    async def _follow(self) -> None:
        try:
            async for targets in self._membership:
                self._links.follow(targets)
                self._end_idle_links()
                self._loop.call_later(LINGER_SECONDS, self._end_idle_links)
                self.links_changed()
        except Exception:
            log.exception("prefill nodes that come or go are not seen any more: restart this node")

    async def stop(self) -> None:
        """Stop passing states on; then cancel every transfer, fetch and pull, and wait for their
        ends. Then stop the links. Each wait lasts at most `patience` seconds of the settings."""
        await self._passing.stop(self._settings.patience)
        for transfer in self._transfers:
            transfer.put(on.Cancelled())
        for fetch in self._fetches:
            fetch.put(on.GivenUp("this node shuts down", Loss.STREAM))
        await self._transfers.end(self._settings.patience)
        await self._fetches.end(self._settings.patience)
        for pull in self._pulls:
            pull.put(on.Stopped("the decode node shuts down"))
        await self._pulls.end(self._settings.patience)
        if self._following is not None:
            self._following.cancel()
        await self._links.stop(self._settings.patience)
        # Wait for the cancelled transfers.
        await self._transfers.end(self._settings.patience)

    def deliver(self, message: m.Outbox) -> None:
        """Handle a message of the engine about hand-overs. It may be called from any thread."""
        self._loop.call_soon_threadsafe(self._dispatch, message)

    def _dispatch(self, message: m.Outbox) -> None:
        match message:
            case m.HandoverWanted():
                self._begin(message)
            case m.FetchWanted():
                self._fetch(message)
            case m.StatePassedOn():
                self._passing.passed_on(message)
            case m.WeightsChanged():
                self._change(message)
            case m.HandoverGranted(grant=grant):
                if (incoming := self._incoming(grant.transfer_id)) is not None:
                    incoming.put(say.Grant(grant.generation, grant.destination, grant))
                else:
                    # The destination was allocated while the room was lost, so no sender ever had
                    # it.
                    self._post(m.WriterFenced(grant.transfer_id))
            case m.HandoverCancelled():
                self._unanswered.discard(message.transfer_id)
                if (transfer := self._transfers.get(message.transfer_id)) is not None:
                    self._asked.pop(transfer.request_id, None)
                    transfer.put(on.Cancelled())
                else:
                    # The request was cancelled while RemoteDone was on its way: all writes had
                    # ended.
                    self._post(m.WriterFenced(message.transfer_id))
            case m.HandoverDeclined():
                if (incoming := self._incoming(message.transfer_id)) is not None:
                    incoming.put(on.Declined())
            case (
                m.PullPinned(source=m.PullSource(transfer_id=number))
                | m.PullRefused(transfer_id=number)
            ):
                if (pull := self._pulls.get(number)) is not None:
                    pull.put(event_of(message))

    def _change(self, message: m.WeightsChanged) -> None:
        """Connect to each prefill node again, with other weights. Transfers in progress end as
        those of a lost connection do."""
        pictures = dict(self._contract.pictures)
        if pictures:
            pictures["tower_digest"] = message.files
        self._contract = replace(
            self._contract,
            weights_digest=message.files,
            tensors_digest=message.tensors,
            pictures=pictures,
        )
        self._links.connect_again(self._contract)
        self._post(m.LinksClosed())

    def _begin(self, wanted: m.HandoverWanted) -> None:
        """Begin the transfer of a wanted hand-over; on an error report its loss to the engine."""
        self._unanswered.add(wanted.transfer_request.transfer_id)
        try:
            self._open(wanted)
        except Exception as error:
            log.exception("transfer %d could not be opened", wanted.transfer_request.transfer_id)
            self._answer(
                wanted.transfer_request.transfer_id, wanted.request_id, f"internal error: {error!r}"
            )

    def _open(self, wanted: m.HandoverWanted) -> None:
        if wanted.purpose is m.Purpose.INHERIT and self._is_held(wanted):
            self._say(wanted.request_id, m.AlreadyHeld(wanted.transfer_request.transfer_id))
            return
        chosen = self._choose(wanted)
        if chosen is None:
            nobody = "no prefill node is connected"
            if wanted.sender is not None:
                nobody = f"{wanted.sender}, which a gateway chose, is no connected prefill node"
            failed = m.HandoverFailed(
                wanted.transfer_request.transfer_id, nobody, cause=m.LossCause.NO_NODE
            )
            if wanted.sender is not None:
                self._say(wanted.request_id, failed)
                return
            # None is left, though one that sees no pictures may be connected.
            self._unanswered.discard(failed.transfer_id)
            self._asked.pop(wanted.request_id, None)
            self._post(failed)
            return
        holder = self._router.holder(wanted, chosen, self._pull_tokens)
        if holder is not None:
            self._advise(wanted, holder)
            return
        self._router.sent(chosen)
        asked = self._asked.setdefault(wanted.request_id, _Asked())
        asked.tried, asked.chosen = (*asked.tried, chosen.link.target), chosen
        transfer = IncomingHandover(
            wanted,
            chosen,
            self._shared,
            partial(self._say, wanted.request_id),
            self._begin_pull,
            self._traceparent(wanted.request_id),
        )
        self._transfers.start(transfer.id, transfer)

    def _advise(self, wanted: m.HandoverWanted, holder: Holder) -> None:
        """Advise the engine to fetch a prefix's state from `holder` first. The engine then asks for
        the hand-over again."""
        transfer_id = wanted.transfer_request.transfer_id
        self._unanswered.discard(transfer_id)
        seconds = min(max(_FETCH_SLACK * holder.seconds, _FETCH_LEAST), _FETCH_MOST)
        self._post(m.FetchAdvised(transfer_id, holder.link.target, holder.tokens, seconds))

    def _fetch(self, wanted: m.FetchWanted) -> None:
        """Begin the transfer of a wanted fetch. If it cannot be opened, report its loss to the
        engine, because prompts wait for the fetch."""
        try:
            is_open = self._open_fetch(wanted)
        except Exception:
            log.exception("fetch %d could not be opened", wanted.transfer_request.transfer_id)
            is_open = False
        if not is_open:
            self._post(m.FetchLost(wanted.transfer_request.transfer_id, m.FetchOutcome.LOST))

    def _open_fetch(self, wanted: m.FetchWanted) -> bool:
        """Begin the transfer of a fetch. Return False if its holder is no connected prefill
        node."""
        link = self._links.living(wanted.holder)
        connection = None if link is None else link.connection
        if link is None or connection is None or not connection.takes(wanted.prompt):
            return False
        post = partial(self._fetch_says, connection)
        transfer = IncomingFetch(wanted, link, connection, self._shared, post)
        self._fetches.start(transfer.id, transfer)
        return True

    def _fetch_says(self, connection: PrefillConnection, message: m.Inbox) -> None:
        if isinstance(message, m.FetchLost) and message.outcome in _HOLDERS_FAULT:
            connection.gives_from = time.monotonic() + _NOT_FETCHED_FROM_SECONDS
        self._post(message)

    def _fetch_over(self, transfer: IncomingFetch, failure: Exception | None) -> None:
        if failure is not None:
            # The engine drops a repeated loss.
            self._post(m.FetchLost(transfer.id, m.FetchOutcome.LOST))
        self._end_idle_links()

    def _choose(self, wanted: m.HandoverWanted) -> Chosen | None:
        """Return the choice of a prefill node for the prompt; None if no node or no attempt is
        left."""
        asked = self._asked.get(wanted.request_id, _Asked())
        if not self._has_attempt(asked):
            return None
        excluded = self._closed(asked.tried, wanted.prompt)
        busy = [transfer.connection for transfer in self._transfers]
        if wanted.sender is not None:
            return self._router.choose(wanted, excluded, busy, wanted.sender)
        if asked.moves_to is not None:
            moved = self._router.choose(wanted, excluded, busy, asked.moves_to, asked.moved_from)
            if moved is not None:
                return moved
        return self._router.choose(wanted, excluded, busy, moved_from=asked.moved_from)

    def _is_held(self, wanted: m.HandoverWanted) -> bool:
        """Return True if a prefill node, not a leaving one, is known to hold all tokens offered by
        this node."""
        transfer_request = wanted.transfer_request
        return self._stands_elsewhere(
            wanted.prompt, transfer_request.salt, transfer_request.offered
        )

    def _is_left_elsewhere(self, state: m.GivenState) -> bool:
        # A lookup ends before a prompt's last token, so repeat that token.
        prompt = repeat_last(state.prompt)
        return self._stands_elsewhere(prompt, state.salt, len(state.prompt))

    def _stands_elsewhere(self, prompt: Keys, salt: bytes, tokens: int) -> bool:
        return self._router.most_held(prompt, salt, self._closed((), prompt)) >= tokens

    def _closed(self, tried: Collection[str], prompt: Keys) -> list[PrefillLink]:
        """Return the links not to be used for the prompt. tried: HOST:PORT of nodes."""
        closed = self._links.closed_to_transfers(tried)
        blind = self._links.blind
        return [*closed, *blind] if blind and has_pictures(prompt) else closed

    def _has_attempt(self, asked: "_Asked") -> bool:
        return len(asked.tried) < self._settings.attempts

    def _begin_pull(self, grant: m.PullGrant, asked_in: IncomingTransfer) -> PullSender:
        """Begin to send a pull. asked_in: transfer of the hand-over pulling. REQUIRES: this
        transfer has no live pull."""
        pull = PullSender(grant, asked_in, self._post, self._sender, self._settings.pull)
        self._pulls.start(grant.transfer_id, pull)
        return pull

    def _say(self, request: m.RequestId, message: m.Inbox) -> None:
        """Post the message to the engine. If it reports a loss, say if another prefill node can be
        tried."""
        if isinstance(message, m.HandoverFailed):
            asked = self._asked.get(request, _Asked())
            if message.cause is m.LossCause.MOVED:
                asked.move()
            # Another prefill node cannot help if this node has no room.
            elsewhere = message.cause is not m.LossCause.NO_ROOM
            elsewhere &= self._has_attempt(asked) and self._links.any_connected(asked.tried)
            message = replace(message, elsewhere=elsewhere)
        if isinstance(message, m.RemoteDone | m.HandoverFailed | m.AlreadyHeld):
            self._unanswered.discard(message.transfer_id)
        if isinstance(message, m.RemoteDone | m.AlreadyHeld) or (
            isinstance(message, m.HandoverFailed) and not message.elsewhere
        ):
            self._asked.pop(request, None)
        self._post(message)

    def _over(self, transfer: IncomingHandover, failure: Exception | None) -> None:
        self._answer(transfer.id, transfer.request_id, "internal error: see this node's log")
        self._end_idle_links()

    def _incoming(self, number: m.TransferId) -> IncomingTransfer | None:
        """Return the live fetch or hand-over with this transfer id; None if there is none."""
        fetch = self._fetches.get(number)
        return self._transfers.get(number) if fetch is None else fetch

    def _answer(self, transfer_id: m.TransferId, request: m.RequestId, reason: str) -> None:
        """Report a transfer's loss to the engine if no end was reported yet."""
        if transfer_id in self._unanswered:
            self._unanswered.discard(transfer_id)
            self._asked.pop(request, None)
            self._post(m.HandoverFailed(transfer_id, reason, cause=m.LossCause.PROTOCOL))

    def _end_idle_links(self) -> None:
        transfers = (transfer.connection for transfer in (*self._transfers, *self._fetches))
        self._links.end_idle((*transfers, *self._passing.connections))

    def _lose_all(self) -> list[WriterLife]:
        self._links.lose_all()
        return [transfer.connection.writer for transfer in (*self._transfers, *self._fetches)]

    def node_leaves(self, link: PrefillLink, connection: PrefillConnection) -> None:
        log.info("prefill node %s ends and leaves its states", connection.node.name)
        self._passing.leaves(link, connection)
        self.links_changed()

    def links_changed(self) -> None:
        available = self._links.available
        if available is not self._available:
            self._available = available
            self._post(m.PeersChanged(available))

    def loads_changed(self) -> None:
        """Report to the engine the least prefill wait on any prefill node caused by other decode
        nodes. Reports only a changed value, at most twice a second; 0 without a connection."""
        now = time.monotonic()
        if now - self._busy_looked_at < _BUSY_SECONDS:
            return
        self._busy_looked_at = now
        connections = (link.connection for link in self.links)
        waits = (each.load.others_wait(now) for each in connections if each and each.alive)
        busy = m.PrefillBusy(min(waits, default=0.0))
        if busy != self._busy:
            self._busy = busy
            self._post(busy)
