"""Receiving side: a thread taking notifications and digesting arrived chunks. It wakes the threads
waiting for them.

Owns the expected transfers and counters. Deals in bytes and layers; not in tokens, requests or
gRPC. Thread rule: every public method may be called from any thread; verify() and wait_settled()
block.

Invariants:
1. A notification of an unknown transfer, an old generation or an arrived chunk changes only a
   counter.
2. Bytes are digested in the arena when their notification is taken, never from a message. Encoded
   bytes are decoded in place after that, and only then count as arrived.
3. verify() returns only if every byte of the destination was sent, has arrived and is equal.
4. wait_settled() returns only when all bytes brought by broken connections are in the arena.
5. Once forget() has returned this thread writes nothing of the transfer: its ids may change owner.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tasuki.pycache._cpp_cache import Bell
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.chunks.chunk import ChunkHeader, Destination, code_of
from tasuki.transfer.chunks.digest import ArenaChunk
from tasuki.transfer.errors import ChunksMissing, DuplicateTransfer, OutOfBounds, TransferError
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.reports import ChunkDigest, PhaseMarks, ReceiverTrack, receiver_track
from tasuki.transfer.transports.base import PollBackoff
from tasuki.utils.signatures import Clock
from tasuki.utils.system import name_this_thread

from .incoming_transfer import IncomingTransfer, LayerBarrier
from .target_arena import ChunkSink, TargetArena

log = logging.getLogger(__name__)

_IDLE_SECONDS = 0.02
_MOST_AT_ONCE = 64
"""Most chunks digested in one call: the first of them waits for the last."""


@dataclass
class ReceiverCounters:
    landed: int = 0
    duplicate: int = 0
    unknown_room: int = 0
    stale_generation: int = 0
    malformed: int = 0


class Receiver:
    def __init__(
        self, layout: CacheLayout, arenas: Sequence[TargetArena], clock: Clock = time.monotonic
    ) -> None:
        """layout: of a single rank with all heads. arenas: of this node, written by peers."""
        self.counters = ReceiverCounters()
        self._layout = layout
        self._arenas = tuple(arenas)
        self._clock = clock
        self._decoding = threading.Lock()
        """Lock held for some milliseconds, while a part of a chunk is decoded."""
        self._transfers: dict[int, IncomingTransfer] = {}
        self._lock = threading.Lock()
        """Lock of the transfers' records. A thread waiting for a transfer is woken by this
        transfer's chunks only."""
        self._passes = 0
        """Number of ended passes of the thread's loop: each moves received bytes into the arena."""
        self._awaited_passes = 0
        self._passed = threading.Condition()
        self._bell = Bell()
        """Bell to wake the receiver's thread."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="tasuki-receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._bell.ring()
        with self._passed:
            self._passed.notify_all()
        self._thread.join()

    def expect(self, transfer_id: int, generation: int, destination: Destination) -> None:
        """Count the transfer's layer chunks from now on. Call it before the destination is sent.

        Raises OutOfBounds on ids outside this node's arenas, DuplicateTransfer.
        """
        for arena in self._arenas:
            destination.check(arena.part(self._layout), arena.slabs)
        changed = threading.Condition(self._lock)
        with self._lock:
            if transfer_id in self._transfers:
                raise DuplicateTransfer(f"transfer {transfer_id} is expected already")
            self._transfers[transfer_id] = IncomingTransfer(
                transfer_id, generation, destination, self._layout, changed
            )
        self._bell.ring()

    def forget(self, transfer_id: int) -> None:
        """Stop counting the transfer's chunks, and wait for a running decode. Idempotent. Later
        chunks are dropped and counted as unknown. Before the transfer's ids are used again, its
        writer must be fenced."""
        with self._lock:
            incoming = self._transfers.pop(transfer_id, None)
            if incoming is not None:
                incoming.forgotten = True
                incoming.changed.notify_all()
        # After this, a running decode has seen the flag or has finished its part.
        with self._decoding:
            pass

    def chunks_arrived(self, transfer_id: int) -> int:
        """Return the number of the transfer's arrived chunks; 0 if the transfer is not expected. A
        growing number is progress."""
        with self._lock:
            incoming = self._transfers.get(transfer_id)
            return 0 if incoming is None else incoming.chunks_arrived

    def barrier(self, transfer_id: int) -> LayerBarrier | None:
        """Return the layer barrier of a transfer, for one waiting thread; None if not expected."""
        with self._lock:
            incoming = self._transfers.get(transfer_id)
        if incoming is None:
            return None
        return LayerBarrier(incoming, self._clock)

    def track(self, transfer_id: int, phases: PhaseMarks) -> ReceiverTrack:
        """Return the transfer's times until now, counted from the start of `phases`; without chunks
        if the transfer is not expected."""
        with self._lock:
            incoming = self._transfers.get(transfer_id)
            arrivals = () if incoming is None else tuple(incoming.arrivals)
            waits = () if incoming is None else tuple(incoming.waits)
        return receiver_track(arrivals, waits, phases)

    def verify(
        self, transfer_id: int, generation: int, sent: Sequence[ChunkDigest], timeout: float
    ) -> None:
        """Wait until all chunks in `sent` have arrived, at most `timeout` seconds, then compare
        digests. Raises DigestMismatch, or ChunksMissing: also if the transfer is not expected. It
        waits because the sender's last message may overtake the last notifications."""
        with self._lock:
            incoming = self._expected(transfer_id, generation)
            incoming.wait_for(sent, timeout)
            if incoming.forgotten:
                raise _not_expected(transfer_id, generation)
            incoming.verify(sent)

    def verify_arrived(
        self, transfer_id: int, generation: int, sent: Sequence[ChunkDigest]
    ) -> bool:
        """Compare digests as verify() does, with its errors, but without a wait. Return False if
        some chunks of `sent` have not arrived, else True."""
        with self._lock:
            incoming = self._expected(transfer_id, generation)
            if incoming.missing(sent):
                return False
            incoming.verify(sent)
            return True

    def _expected(self, transfer_id: int, generation: int) -> IncomingTransfer:
        """Return an expected record. Raises ChunksMissing. REQUIRES: the lock is held."""
        incoming = self._transfers.get(transfer_id)
        if incoming is None or incoming.generation != generation:
            raise _not_expected(transfer_id, generation)
        return incoming

    def wait_settled(self) -> None:
        """Block until all bytes brought by already broken connections are in the arena, or until
        stop(). This holds even if the receiver's thread was delayed."""
        self._wait_passes()
        while self._unread() and not self._stopping.is_set():
            self._wait_passes()
        # The pass that read a socket's last bytes has stored them by its end.
        self._wait_passes()

    def _unread(self) -> bool:
        return any(arena.transport.unread() for arena in self._arenas)

    def _wait_passes(self) -> None:
        """Wait until the receiver thread has begun and ended a whole pass, or until stop()."""
        with self._passed:
            enough = self._passes + 2
            self._awaited_passes = max(self._awaited_passes, enough)
            self._bell.ring()
            self._passed.wait_for(lambda: self._passes >= enough or self._stopping.is_set())

    def _loop(self) -> None:
        name_this_thread()
        pace = PollBackoff()
        rung = all([arena.transport.ring_at_arrivals(self._bell) for arena in self._arenas])
        while not self._stopping.is_set():
            pace.begin()
            arrived = sum([self._pass(arena) for arena in self._arenas])
            with self._passed:
                self._passes += 1
                awaited = self._passes < self._awaited_passes
                self._passed.notify_all()
            if arrived or awaited:
                pace.reset()
            elif rung or not self._transfers:
                # Unexpected notifications are still drained, but less often if they do not ring.
                # expect() ends this wait.
                self._bell.wait(_IDLE_SECONDS)
            else:
                seconds = min(arena.transport.poll_seconds for arena in self._arenas)
                self._bell.wait(pace.wait_seconds(seconds))

    def _pass(self, arena: TargetArena) -> int:
        """Take this arena's notifications and handle their chunks; return their number."""
        try:
            arrived = arena.transport.notifications()
        except TransferError as error:
            log.warning("notifications could not be read: %s", error)
            return 0
        # Decoding a chunk may overwrite bytes of the next one before their digest: take each chunk
        # by itself.
        at_once = _MOST_AT_ONCE if arena.chunk_sink is None else 1
        for first in range(0, len(arrived), at_once):
            self._take(arena, arrived[first : first + at_once])
        return len(arrived)

    def _take(self, arena: TargetArena, notifications: Sequence[bytes]) -> None:
        landed_at = self._clock()
        chunks = self._digested(arena, self._awaited(arena, notifications))
        if arena.chunk_sink is not None:
            chunks = [w for w in chunks if self._decoded(arena.chunk_sink, w)]
        with self._lock:
            verified_at = self._clock()
            for chunk in chunks:
                chunk.incoming.arrive(chunk.header, chunk.digest, landed_at, verified_at)
            self.counters.landed += len(chunks)
            for changed in {id(w.incoming): w.incoming.changed for w in chunks}.values():
                changed.notify_all()
        for chunk in chunks:
            with _dropping():
                reach(Place.RECEIVER_AFTER_LANDED, chunk.header.sequence)

    def _awaited(self, arena: TargetArena, notifications: Sequence[bytes]) -> "list[_Arrival]":
        """Return the announced chunks awaited by a transfer; count and drop the others."""
        arrivals: dict[tuple[int, int], _Arrival] = {}
        for notification in notifications:
            with _dropping():
                landing = self._awaited_one(arena, notification)
                if landing is None:
                    continue
                key = landing.incoming.transfer_id, landing.header.sequence
                if key in arrivals:
                    self.counters.duplicate += 1
                    continue
                reach(Place.RECEIVER_ON_LANDED, landing.header.sequence)
                arrivals[key] = landing
        return list(arrivals.values())

    def _awaited_one(self, arena: TargetArena, notification: bytes) -> "_Arrival | None":
        try:
            code = code_of(notification, arena.codes)
            transfer_id, generation, header = ChunkHeader.unpack(notification, code)
        except ValueError as error:
            self.counters.malformed += 1
            log.warning("a notification was dropped: %s", error)
            return None
        with self._lock:
            incoming = self._transfers.get(transfer_id)
            if incoming is None:
                self.counters.unknown_room += 1
                return None
            if incoming.generation != generation:
                self.counters.stale_generation += 1
                return None
            if incoming.has(header):
                self.counters.duplicate += 1
                if arena.chunk_sink is not None:
                    incoming.spoil(header)
                return None
            if incoming.sealed:
                # After the seal the ids belong to the request: take no further chunk.
                self.counters.unknown_room += 1
                return None
        try:
            pages = incoming.pages_of(header)
        except OutOfBounds as error:
            self.counters.malformed += 1
            log.warning("a notification was dropped: %s", error)
            return None
        slot = incoming.destination.slot if header.carries_state else None
        return _Arrival(incoming, ArenaChunk(transfer_id, generation, header, pages, slot), code)

    def _digested(self, arena: TargetArena, chunks: "list[_Arrival]") -> "list[_Arrival]":
        """Return the chunks with their digests. Log and drop a chunk if its digest fails."""
        if not chunks:
            return []
        try:
            found = arena.digester.digest_each(
                [arena.digestible(chunk.placed, chunk.code) for chunk in chunks]
            )
        except Exception:
            if len(chunks) > 1:
                # A fault of one chunk must not affect another.
                return [one for chunk in chunks for one in self._digested(arena, [chunk])]
            log.exception("a notification was dropped")
            return []
        for chunk, digest in zip(chunks, found, strict=True):
            chunk.digest = digest
        return chunks

    def _decoded(self, chunk_sink: ChunkSink, chunk: "_Arrival") -> bool:
        """Decode the chunk in place, in parts. Return False if forgotten meanwhile, or failed."""
        with _dropping():
            placed = chunk.placed
            for part in chunk_sink.parts(placed.header, placed.pages, placed.slot):
                with self._decoding:
                    if chunk.incoming.forgotten:
                        return False
                    chunk_sink.decode(part)
            return True
        return False


@dataclass(eq=False)
class _Arrival:
    """Announced layer chunk awaited by its transfer. code: precision code of its notification.
    digest: digest of its bytes in the arena."""

    incoming: IncomingTransfer
    placed: ArenaChunk
    code: int
    digest: int = 0

    @property
    def header(self) -> ChunkHeader:
        return self.placed.header


def _not_expected(transfer_id: int, generation: int) -> ChunksMissing:
    return ChunksMissing(f"transfer {transfer_id}, generation {generation} is not expected")


@contextmanager
def _dropping() -> Iterator[None]:
    """Log an error of one chunk, so the thread of all transfers goes on. The chunk is then missing,
    and its transfer's verification fails."""
    try:
        yield
    except Exception:
        log.exception("a notification was dropped")
