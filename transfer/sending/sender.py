"""Sending side: the thread posting layer chunks, and the connections to its peers.

Owns the transfer thread. Every public method returns at once, from any thread, except connect() and
stop(). Callbacks run on the transfer thread.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from tasuki.pycache._cpp_cache import Bell, WriteLease
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.chunks.chunk import (
    Destination,
    FinishedLayers,
    LayerChunk,
    check_pages,
    check_slot,
)
from tasuki.transfer.chunks.descriptors import chunk_bytes
from tasuki.transfer.chunks.digest import ArenaChunk
from tasuki.transfer.errors import DuplicateTransfer, PeerUnknown, TransferError, TransportError
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.node_identity import ArenaAddress, NodeIdentity
from tasuki.transfer.ranks.region import RankSpans
from tasuki.transfer.reports import Drain, SenderCounters, TransferBroke, TransferEnd, TransferSent
from tasuki.transfer.transports.base import (
    HeldTransfer,
    HeldWrite,
    Holding,
    PollBackoff,
    Transfer,
    TransferState,
    Write,
)
from tasuki.utils.signatures import Clock
from tasuki.utils.system import name_this_thread

from .chunk_sizing import chunk_runs
from .chunk_source import AskedDigest, DigestThread, LoadedChunk
from .link import Link, SourceArena, WriteLeases
from .outgoing_transfer import Digest, FairQueue, OnEnd, OutgoingTransfer, Posted

log = logging.getLogger(__name__)

_IDLE_SECONDS = 0.05
_LEASE_ENDED = "the receiver's lease ended before a layer chunk was posted"


@dataclass(frozen=True)
class SenderSettings:
    """Settings of a sender. layers_per_window: layers of a chunk; None: chosen by the link's cost.
    ahead_seconds: most seconds of bytes in flight on a link of known speed, because a posted chunk
    cannot be overtaken. lease_seconds: time from a peer's last renewal until posting to it stops.
    stall_seconds: a transfer stops without a flush for this time and for several times the expected
    duration. drain_seconds: limit of a stopped transfer's wait for its posted chunks.
    posted_chunks: most chunks of a transfer in flight."""

    layers_per_window: int | None = 1
    ahead_seconds: float = 0.02
    lease_seconds: float = 4.0
    stall_seconds: float = 5.0
    drain_seconds: float = 2.0
    posted_chunks: int = 8


class Sender:
    """Sending side: a thread posting each transfer's layer chunks as soon as their layers are
    finished.

    Owns transfers, this node's leases for writing to peers, and the transfer thread. Deals in bytes
    and layers; not in tokens, requests or gRPC. Thread rule: every public method may be called from
    any thread and returns at once, except connect() and stop(). Callbacks run on the transfer
    thread and must return at once. Invariants:
    1. Nothing is posted to a peer without a renewal within `lease_seconds`, nor ever again for
       its transfers.
    2. A transfer's end is reported once, when none of its chunks is in flight (or the drain
       deadline passed: Drain.FORCED).
    3. One slow transfer does not delay another: transfers take turns, and share by bytes.
    4. A slow link with progress is waited for; only a stalled link ends its transfers.
    """

    def __init__(
        self,
        layout: CacheLayout,
        arenas: Sequence[SourceArena],
        settings: SenderSettings | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """layout: of a single rank with all heads. arenas: sent from; peers have as many."""
        self.settings = settings or SenderSettings()
        self.counters = SenderCounters()
        self._layout = layout
        self._arenas = tuple(arenas)
        self._clock = clock
        self._lock = threading.Lock()
        self._leases = WriteLeases(self.settings.lease_seconds, clock)
        self._transfers: dict[int, OutgoingTransfer] = {}
        self._turns = FairQueue()
        self._forced: set[tuple[str, int]] = set()
        """Transfers (peer, id) with a drain given up: their chunks may arrive at any time."""
        self._bell = Bell()
        """Bell to wake the transfer thread."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="tasuki-sender", daemon=True)
        self._digests = DigestThread(self._bell.ring)
        for arena in self._arenas:
            arena.transport.ring_at_ends(self._bell)

    def start(self) -> None:
        self._digests.start()
        self._thread.start()

    def stop(self) -> None:
        """Abort every transfer, wait until its posted writes have drained, and end the thread.
        Peers are disconnected; the transports stay open."""
        with self._lock:
            transfers = list(self._transfers.values())
        for future in [self.abort(transfer.transfer_id, transfer.peer) for transfer in transfers]:
            future.result(self.settings.drain_seconds + 5.0)
        for peer in self._leases.names():
            self.disconnect(peer)
        self._stopping.set()
        self._bell.ring()
        self._thread.join()
        self._digests.stop()
        self._close_endpoints()

    # Peers

    def connect(
        self, peer: str, addresses: Sequence[ArenaAddress], asked_at: float | None = None
    ) -> None:
        """Connect to `peer`: open a link from each of this node's arenas to the peer's arena at the
        same index of `addresses`. Both nodes have this layout. The lease starts now, or at
        `asked_at`: the time when this node asked the peer to connect. Raises TransportError. A name
        is used for one connection and never again."""
        if len(addresses) != len(self._arenas):
            raise TransportError(
                f"peer {peer} has {len(addresses)} arenas, this node {len(self._arenas)}; start "
                "both with as many ranks"
            )
        links: list[Link] = []
        try:
            for arena, address in zip(self._arenas, addresses, strict=True):
                links.append(self._linked(peer, arena, address))
        except TransferError:
            for link in links:
                link.disconnect()
            raise
        self._leases.add(peer, links, asked_at)

    def _linked(self, peer: str, arena: SourceArena, address: ArenaAddress) -> Link:
        """Open the link to one arena of the peer. Raises TransportError, and then leaves no
        endpoint open."""
        try:
            theirs = RankSpans(self._layout, address.ranks, address.slabs)
            needed = theirs.region_bytes
            source = arena.chunk_source.toward(theirs, arena.slabs)
        except ValueError as error:
            raise TransportError(f"peer {peer} of {address.ranks} ranks: {error}") from error
        link = Link(arena, source, arena.transport.connect(address.transport_metadata), theirs)
        registered = link.endpoint.remote_size
        if registered < needed:
            link.disconnect()
            raise TransportError(
                f"peer {peer} registered {registered} bytes for {address.slabs} slabs of "
                f"{theirs.part.slab_bytes}"
            )
        return link

    def renew(self, peer: str, asked_at: float) -> None:
        """Renew the peer's lease from `asked_at` on this node's clock. The peer certainly accepted
        writes at this time. Unknown peers are ignored."""
        self._leases.renew(peer, asked_at)

    def disconnect(self, peer: str) -> None:
        """End the connection to the peer. Idempotent. The peer's transfers stop; its endpoints are
        closed once they have ended."""
        now = self._clock()
        self._leases.remove(peer)
        with self._lock:
            for transfer in self._transfers.values():
                if transfer.peer == peer:
                    transfer.stop("the connection to the receiver is over", now)
        self._bell.ring()

    def has_endpoint(self, peer: str) -> bool:
        """Return True if the peer's endpoints are still open: it is connected, or its transfers
        still drain."""
        return self._leases.has_endpoint(peer)

    # Rooms

    def open(
        self, transfer_id: int, generation: int, peer: str, destination: Destination, on_end: OnEnd
    ) -> None:
        """Open a transfer to the receiver's destination. on_end: called with its end. Raises
        PeerUnknown, DuplicateTransfer, OutOfBounds, and then opens nothing."""
        known = self._leases.peer(peer)
        if known is None:
            raise PeerUnknown(f"transfer {transfer_id}: no connection {peer}; connect first")
        with self._lock:
            if transfer_id in self._transfers or (peer, transfer_id) in self._forced:
                raise DuplicateTransfer(f"transfer {transfer_id} is open already")
            (link,) = known.links
            destination.check(link.theirs.part, link.theirs.slabs)
            self._transfers[transfer_id] = OutgoingTransfer(
                transfer_id, generation, peer, destination, on_end, link
            )

    def plan_forward(self, transfer_id: int, plan: FinishedLayers) -> None:
        """Plan the transfer's layers finished by the next forward; call it before their first tick.
        Plans follow one another: whole pages, each once. The first plan starts at most at the
        destination's first page, the last (with state_slot) ends at the destination's end. A plan
        breaking this ends the transfer, and raises nothing. An ended transfer ignores plans."""
        now = self._clock()
        with self._lock:
            outgoing = self._transfers.get(transfer_id)
            if outgoing is None or outgoing.stopped:
                return
            source, chunk_source = outgoing.link.source, outgoing.link.chunk_source
            try:
                check_pages(source.part(self._layout), source.slabs, plan.local_pages)
                if plan.state_slot is not None:
                    check_slot(source.slabs, plan.state_slot)
                accepted = outgoing.accept(plan)
            except TransferError as error:
                outgoing.stop(str(error), now)
            else:
                size = self.settings.layers_per_window
                cost = outgoing.link.rate.cost
                runs = chunk_runs(chunk_source.sizes, accepted, size, cost)
                outgoing.append(chunk_source.windows(accepted, runs, outgoing.next_sequence))
        self._bell.ring()

    def progress(self, transfer_id: int) -> int:
        """Return a count growing with each planned or flushed chunk; 0 for an ended transfer."""
        with self._lock:
            outgoing = self._transfers.get(transfer_id)
            return 0 if outgoing is None else outgoing.progress

    def remaining_seconds(self, transfer_id: int) -> float | None:
        """Return the expected seconds until the transfer's planned chunks are flushed; 0 for an
        ended transfer. Assumes finished layers and equal shares for a link's transfers. None if the
        link's speed is unknown."""
        with self._lock:
            outgoing = self._transfers.get(transfer_id)
            if outgoing is None or outgoing.stopped:
                return 0.0
            link = outgoing.link
            if link.rate.cost is None:
                return None
            own, chunks = outgoing.backlog_bytes, len(outgoing.waiting) + len(outgoing.posted)
            sharing = [other for other in self._transfers.values() if other.link is link]
            shared = sum(min(own, other.backlog_bytes) for other in sharing)
            return chunks * link.rate.cost.chunk_seconds + shared * link.rate.cost.byte_seconds

    def abort(self, transfer_id: int, peer: str) -> "Future[Drain]":
        """Post nothing more for this transfer. Return a future of its Drain, for the end of its
        posted chunks. Idempotent. An ended transfer, or one of another peer, gets a resolved
        future: FORCED for a given-up drain, else DRAINED. An aborted transfer's on_end is not
        called."""
        now = self._clock()
        with self._lock:
            outgoing = self._transfers.get(transfer_id)
            if outgoing is not None and outgoing.peer == peer:
                outgoing.aborted = True
                outgoing.stop("aborted", now)
                self._bell.ring()
                return outgoing.drained
            over: Future[Drain] = Future()
            over.set_result(Drain.FORCED if (peer, transfer_id) in self._forced else Drain.DRAINED)
            return over

    # The transfer thread

    def _loop(self) -> None:
        name_this_thread()
        pace = PollBackoff()
        while not self._stopping.is_set():
            with self._lock:
                transfers = list(self._transfers.values())
            seen = [arena.steps.value for arena in self._arenas]
            pace.begin()
            unwritable = {
                peer
                for peer in {transfer.peer for transfer in transfers}
                if not self._leases.writable(peer)
            }
            moved = [
                self._turn(transfer, self._advance)
                for transfer in transfers
                if transfer.has_something_to_end or transfer.peer in unwritable
            ]
            posted = self._post_in_turns(transfers)
            self._close_endpoints()
            if any(moved) or posted:
                pace.reset()
            elif not self._await_ticks(transfers, seen):
                self._rest(transfers, pace)

    def _await_ticks(self, transfers: Sequence[OutgoingTransfer], seen: Sequence[int]) -> bool:
        """Set an alarm for the next tick (finished layer) with a chunk ready; return True if it has
        passed. seen: each arena's ticks before the transfers were examined. A chunk ready before
        then, and not posted, waits for a flush."""
        come = False
        for arena, before in zip(self._arenas, seen, strict=True):
            ticks = [
                transfer.next_tick
                for transfer in transfers
                if transfer.link.source is arena and not transfer.link.holds
            ]
            ahead = [tick for tick in ticks if tick is not None and tick > before]
            come |= arena.steps.ring_at(self._bell, min(ahead, default=None))
        return come

    def _rest(self, transfers: Sequence[OutgoingTransfer], pace: PollBackoff) -> None:
        """Wait until polling (paced by `pace`) can show a change, or another thread wakes this
        one."""
        asked = [transfer for transfer in transfers if transfer.posted and not transfer.link.rings]
        if not asked:
            # Only a wakeup event ends this wait early, not a deadline.
            self._bell.wait(_IDLE_SECONDS)
            return
        poll_seconds = min(arena.transport.poll_seconds for arena in self._arenas)
        in_flight = sum(len(transfer.posted) for transfer in asked)
        self._bell.wait(pace.wait_seconds(poll_seconds, in_flight))

    def _close_endpoints(self) -> None:
        """Close the endpoints of removed peers, once none of their chunks can be in flight."""
        with self._lock:
            busy = {transfer.peer for transfer in self._transfers.values()}
        for peer, links in self._leases.left(busy):
            for link in links:
                try:
                    link.disconnect()
                except TransferError as error:
                    log.warning("peer %s could not be disconnected: %s", peer, error)
            self._leases.forget(peer)

    def _post_in_turns(self, transfers: Sequence[OutgoingTransfer]) -> bool:
        """Post a chunk of each transfer, or more of one and fewer of another for fairness. Return
        True if any was taken. Chunks to one peer are posted in one call."""
        moved = False
        leaving: list[Leaving] = []
        able = [transfer for transfer in transfers if transfer.waiting and self._may_post(transfer)]
        for _ in transfers:
            # Posting for one room may have filled the link of another.
            while able and not self._may_post(transfer := self._turns.next(able)):
                able.remove(transfer)
            if not able:
                break
            moved |= self._turn(transfer, partial(self._load_next, leaving))
            if leaving and len(leaving) >= transfer.link.chunk_source.most_together:
                self._post_all(leaving)
                leaving = []
        self._post_all(leaving)
        return moved

    def _may_post(self, transfer: OutgoingTransfer) -> bool:
        if len(transfer.posted) + transfer.leaving >= self.settings.posted_chunks:
            return False
        link, rate = transfer.link, transfer.link.rate
        if not (transfer.has_ready(link.ready_until) and link.chunk_source.has_room(transfer.peer)):
            return False
        ahead = rate.seconds_for(rate.in_flight_bytes)
        alone = not transfer.posted and not transfer.leaving
        return alone or ahead is None or ahead < self.settings.ahead_seconds

    def _turn(self, transfer: OutgoingTransfer, act: Callable[[OutgoingTransfer], bool]) -> bool:
        try:
            return act(transfer)
        except Exception as error:
            # A defect of one room must not end the thread of all rooms.
            log.exception("transfer %d broke", transfer.transfer_id)
            self._stop(transfer, f"internal error: {error!r}")
            return False

    def _advance(self, transfer: OutgoingTransfer) -> bool:
        """Collect the transfer's flushed chunks, check its deadlines, and end it if it is finished.
        Return True if there was progress."""
        moved = self._reap(transfer)
        if not transfer.stopped and self._leases.writable(transfer.peer) is None:
            self._stop(transfer, f"not renewed by the receiver for {self.settings.lease_seconds} s")
        patience = self.settings.stall_seconds + transfer.link.rate.patience()
        if transfer.stalled_seconds(self._clock()) > patience:
            self._stop(transfer, f"no layer chunk was flushed for {patience:.1f} s")
        return self._end_if_over(transfer) or moved

    def _load_next(self, leaving: "list[Leaving]", transfer: OutgoingTransfer) -> bool:
        """Load the transfer's next chunk into `leaving`; return True if there was one."""
        source = transfer.link.chunk_source
        with self._lock:
            chunk = transfer.take_ready(transfer.link.ready_until)
        if chunk is None:
            return False
        self._turns.served(transfer, chunk_bytes(source.sizes, chunk.header))
        begun = self._clock()
        loaded = source.load(transfer.peer, chunk)
        try:
            leaving.append(self._leaving(transfer, chunk, loaded, begun))
        except BaseException:
            loaded.release()
            raise
        return True

    def _leaving(
        self, transfer: OutgoingTransfer, chunk: LayerChunk, loaded: LoadedChunk, begun: float
    ) -> "Leaving":
        header = chunk.header
        segments = loaded.segments(transfer.destination)
        size = int(segments[:, 2].sum())
        note = header.pack(
            transfer.transfer_id, transfer.generation, transfer.link.chunk_source.code
        )
        reach(Place.SENDER_BEFORE_POST, header.sequence)
        transfer.leaving += 1
        transfer.link.rate.posted(size)
        return Leaving(transfer, chunk, loaded, Write(segments, note), size, begun)

    def _stop(self, transfer: OutgoingTransfer, reason: str) -> None:
        with self._lock:
            transfer.stop(reason, self._clock())

    def _post_all(self, leaving: "Sequence[Leaving]") -> None:
        by_link: dict[int, list[Leaving]] = {}
        for each in leaving:
            by_link.setdefault(id(each.transfer.link), []).append(each)
        for group in by_link.values():
            self._post_together(group[0].transfer.link, group[0].transfer.peer, group)

    def _post_together(self, link: Link, peer: str, group: "Sequence[Leaving]") -> None:
        """Post the chunks of one link in one call; a failed post stops its transfer."""
        for each in group:
            if each.transfer.stopped:
                self._give_up(each, "stopped")
        group = [each for each in group if not each.transfer.stopped]
        # Nothing slow may come between this and the post.
        known = self._leases.writable(peer)
        if known is None:
            for each in group:
                self._give_up(each, _LEASE_ENDED)
            return
        given = None if link.holds else self._clock()
        try:
            found = _given(link, known.lease, group)
        except Exception as error:
            log.exception("the transport broke")
            for each in group:
                # Parts may have been posted.
                each.transfer.write_lost = True
                self._give_up(each, f"internal error: {error!r}")
            return
        digests: list[AskedDigest] = []
        for each, transfer in zip(group, found, strict=True):
            if isinstance(transfer, Exception):
                self._refused(each, transfer)
                continue
            digest: Digest
            if isinstance(transfer, HeldTransfer):
                digest = transfer.digest
            else:
                digester = link.chunk_source.digester
                digest = AskedDigest(
                    digester, each.loaded, each.transfer.transfer_id, each.transfer.generation
                )
                digests.append(digest)
            self._posted(each, transfer, given, digest)
        # Digest beside the transfers: the bytes do not change while their rooms are open.
        if digests:
            self._digests.ask(digests)
        for each, transfer in zip(group, found, strict=True):
            if not isinstance(transfer, Exception):
                self._turn(each.transfer, partial(_reached_after_post, each))

    def _refused(self, leaving: "Leaving", error: Exception) -> None:
        if isinstance(error, TransferError):
            leaving.transfer.endpoint_failed = True
            self._give_up(leaving, str(error))
        else:
            log.error("transfer %d broke", leaving.transfer.transfer_id, exc_info=error)
            self._give_up(leaving, f"internal error: {error!r}")

    def _give_up(self, leaving: "Leaving", reason: str) -> None:
        """Give up a chunk before it is posted, and stop its transfer."""
        leaving.transfer.leaving -= 1
        leaving.transfer.link.rate.gone(leaving.bytes)
        leaving.loaded.release()
        self._stop(leaving.transfer, reason)

    def _posted(
        self, leaving: "Leaving", transfer: Transfer, given: float | None, digest: Digest
    ) -> None:
        outgoing = leaving.transfer
        posted = Posted(
            *(leaving.chunk, leaving.loaded, transfer, leaving.bytes, leaving.begun, given, digest)
        )
        with self._lock:
            outgoing.leaving -= 1
            outgoing.posted.append(posted)

    def _reap(self, transfer: OutgoingTransfer) -> bool:
        """Collect flushed or failed chunks, in any order; return True if there were any."""
        link = transfer.link
        gone: list[Posted] = []
        flushed: list[Posted] = []
        for posted in list(transfer.posted):
            try:
                if posted.flushed is None:
                    state = link.source.transport.poll(posted.transfer)
                    if state is TransferState.PENDING:
                        self._cancel_if_over(transfer, posted)
                        continue
                    posted.flushed = posted.transfer.ended_at or self._clock()
                    if state is TransferState.DROPPED:
                        self._stop(transfer, _LEASE_ENDED)
                if posted.at is None:
                    link.rate.gone(posted.bytes)
                    self._release(transfer, posted)
                    gone.append(posted)
                    continue
                if not transfer.stopped:
                    if not posted.digest.done:
                        continue
                    self._note_flushed(transfer, posted)
                flushed.append(posted)
            except TransferError as error:
                transfer.endpoint_failed = transfer.write_lost = True
                link.rate.gone(posted.bytes)
                self._stop(transfer, str(error))
            self._release(transfer, posted)
            gone.append(posted)
        if gone:
            # Under the lock, because other threads read the posted chunks.
            with self._lock:
                for posted in gone:
                    transfer.posted.remove(posted)
        for posted in flushed:
            reach(Place.SENDER_AFTER_FLUSH, posted.chunk.header.sequence)
        if flushed:
            size = sum(posted.bytes for posted in flushed)
            last = max(posted.flushed or 0.0 for posted in flushed)
            link.rate.flushed(size, min(posted.at or last for posted in flushed), last)
        return bool(gone)

    @staticmethod
    def _cancel_if_over(transfer: OutgoingTransfer, posted: Posted) -> None:
        """Cancel a stopped transfer's chunk if the transport still holds it back."""
        if transfer.stopped and isinstance(posted.transfer, HeldTransfer):
            transfer.link.source.transport.cancel(posted.transfer)

    def _note_flushed(self, transfer: OutgoingTransfer, posted: Posted) -> None:
        try:
            transfer.flushed(posted)
        except Exception as error:
            # The chunk's bytes have arrived, but cannot be verified without a digest.
            log.exception(
                "a layer chunk of transfer %d could not be digested", transfer.transfer_id
            )
            self._stop(transfer, f"internal error: {error!r}")

    def _end_if_over(self, transfer: OutgoingTransfer) -> bool:
        with self._lock:
            if transfer.complete:
                end: TransferEnd = TransferSent(
                    transfer.transfer_id, transfer.report(transfer.link.source.steps)
                )
                drain = Drain.DRAINED
            elif transfer.stop_reason is not None and (
                not transfer.posted or self._drained_for_too_long(transfer)
            ):
                drain = Drain.DRAINED
                if transfer.posted or transfer.write_lost:
                    drain = Drain.FORCED
                    self._forced.add((transfer.peer, transfer.transfer_id))
                end = TransferBroke(
                    transfer.transfer_id, transfer.stop_reason, drain, transfer.endpoint_failed
                )
            else:
                return False
        for posted in transfer.posted:
            self._release(transfer, posted)
        transfer.link.rate.gone(sum(posted.bytes for posted in transfer.posted))
        with self._lock:
            # After the release, because a missing room counts as drained.
            del self._transfers[transfer.transfer_id]
            aborted = transfer.aborted
        self.counters.count(end)
        transfer.drained.set_result(drain)
        if not aborted:
            self._report(transfer.on_end, end)
        return True

    def _drained_for_too_long(self, transfer: OutgoingTransfer) -> bool:
        return transfer.stopped_at is not None and (
            self._clock() - transfer.stopped_at > self.settings.drain_seconds
        )

    @staticmethod
    def _release(transfer: OutgoingTransfer, posted: Posted) -> None:
        transfer.link.source.transport.release(posted.transfer)
        posted.loaded.release()

    @staticmethod
    def _report(on_end: OnEnd, end: TransferEnd) -> None:
        try:
            on_end(end)
        except Exception:
            log.exception("a transfer's end was not taken: %s", end)


@dataclass(frozen=True)
class Leaving:
    """Loaded layer chunk to be posted in this pass. begun: time when its loading began."""

    transfer: OutgoingTransfer
    chunk: LayerChunk
    loaded: LoadedChunk
    write: Write
    bytes: int
    begun: float


def _given(
    link: Link, lease: WriteLease, group: "Sequence[Leaving]"
) -> Sequence[Transfer | Exception]:
    """Post the chunks, or let the transport post each once its layers are finished."""
    transport, endpoint = link.source.transport, link.endpoint
    of_gpu = link.chunk_source.digester.of_gpu
    if not link.holds or of_gpu is None:
        return transport.post_all(endpoint, [each.write for each in group])
    writes = []
    for each in group:
        chunk = each.loaded.digestible(each.transfer.transfer_id, each.transfer.generation)
        assert isinstance(chunk, ArenaChunk)
        writes.append(HeldWrite(each.write, each.chunk.tick, chunk))
    return transport.hold(endpoint, writes, Holding(link.source.steps, lease, of_gpu))


def _reached_after_post(leaving: Leaving, transfer: OutgoingTransfer) -> bool:
    reach(Place.SENDER_AFTER_POST, leaving.chunk.header.sequence)
    return True


_POLL_SECONDS = 0.01


async def connect_within(
    seconds: float, sender: Sender, name: str, node: NodeIdentity, asked_at: float | None = None
) -> None:
    """Open the endpoints to a peer within `seconds`, even if the transport hangs. Arguments are as
    in Sender.connect. Keeps nothing. Thread rule: the event loop; the transport's part runs in a
    thread of its own. Invariant: an endpoint opened too late, or after the caller was cancelled, is
    released. Raises TransportError, also after `seconds`."""
    connecting = asyncio.ensure_future(
        asyncio.to_thread(sender.connect, name, node.arenas, asked_at)
    )
    in_time = False
    try:
        await asyncio.wait({connecting}, timeout=seconds)
        in_time = connecting.done()
    finally:
        if not in_time:
            connecting.add_done_callback(partial(_let_go, sender, name))
    if not in_time:
        raise TransportError(f"no endpoint to node {node.name} within {seconds} s")
    connecting.result()


def _let_go(sender: Sender, name: str, connecting: "asyncio.Future[None]") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        sender.disconnect(name)


async def disconnected_within(seconds: float, sender: Sender, names: Iterable[str]) -> None:
    """Wait until no peer in `names` has an open endpoint, or `seconds` are over. Transports share
    one path to a process, so a new endpoint must not inherit a broken part of an old one."""
    known = list(names)
    deadline = time.monotonic() + seconds
    while any(map(sender.has_endpoint, known)) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
