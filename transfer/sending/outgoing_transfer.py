"""Outgoing transfers: the state of each, and the choice of the transfer to send from next.

Thread rule: Sender calls a transfer under its lock. The queue belongs to the transfer thread.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from tasuki.transfer.chunks.chunk import Destination, FinishedLayers, LayerChunk, StepCounter
from tasuki.transfer.chunks.descriptors import chunk_bytes
from tasuki.transfer.errors import ChunkPlanError
from tasuki.transfer.reports import (
    ChunkDigest,
    ChunkTiming,
    Drain,
    SendReport,
    TransferEnd,
    split_time,
)
from tasuki.transfer.transports.base import Transfer

from .chunk_source import LoadedChunk
from .link import Link

OnEnd = Callable[[TransferEnd], None]


class Digest(Protocol):
    """Digest of a layer chunk, available now or later."""

    @property
    def done(self) -> bool: ...

    def result(self) -> int:
        """Return the chunk's digest. Raises the digester's error. REQUIRES: `done` is True."""


@dataclass
class Posted:
    """Layer chunk given to the transport. begun: time when its loading began. given: its post time;
    None if the transport posts it later by itself. digest: digest of the chunk's bytes, computed
    during the write. flushed: time when the write was seen to have ended; None until then."""

    chunk: LayerChunk
    loaded: LoadedChunk
    transfer: Transfer
    bytes: int
    begun: float
    given: float | None
    digest: Digest
    flushed: float | None = None

    @property
    def at(self) -> float | None:
        """Return the post time; None while the transport holds the chunk back."""
        return self.transfer.posted_at if self.given is None else self.given


@dataclass
class OutgoingTransfer:
    """One transfer on the sending side: planned, posted and flushed chunks, and its end.

    Owns the transfer's chunks and handles. Does not know threads, clocks or leases: Sender calls it
    under its lock. Invariants: plans follow one another without gap or overlap and stay inside the
    destination. After stop() no chunk waits, and none is taken to be posted. The transfer ends
    exactly once, and only when none of its chunks is in flight.
    """

    transfer_id: int
    generation: int
    peer: str
    destination: Destination
    on_end: OnEnd
    link: Link
    waiting: deque[LayerChunk] = field(default_factory=deque)
    posted: deque[Posted] = field(default_factory=deque)
    leaving: int = 0
    """Number of chunks taken from the queue and not posted yet."""
    drained: "Future[Drain]" = field(default_factory=Future)
    stop_reason: str | None = None
    stopped_at: float | None = None
    endpoint_failed: bool = False
    write_lost: bool = False
    """True once a posted write failed: some of its bytes may have arrived, or may still arrive."""
    aborted: bool = False
    next_sequence: int = 0
    served_until: int = 0
    """Bytes sent from this transfer, as virtual time of `FairQueue`."""
    _planned_end: int | None = None
    _last_planned: bool = False
    _last_tick: int = 0
    _last_flush: float = float("-inf")
    _bytes: int = 0
    _digests: list[ChunkDigest] = field(default_factory=list)
    _timeline: list[ChunkTiming] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Several callers wait for the future. As a running one it cannot be cancelled by any of
        # them.
        self.drained.set_running_or_notify_cancel()

    @property
    def stopped(self) -> bool:
        return self.stop_reason is not None

    @property
    def has_something_to_end(self) -> bool:
        """Return True if a chunk is in flight, the last one was taken, or it is stopped."""
        if self.posted or self.stop_reason is not None:
            return True
        return self._last_planned and not self.waiting

    @property
    def next_tick(self) -> int | None:
        """Return the step (count of finished layers) needed for posting the next chunk; None if no
        chunk waits. Called without a lock: another thread may stop the transfer and clear its
        chunks meanwhile."""
        try:
            return self.waiting[0].tick
        except IndexError:
            return None

    def accept(self, plan: FinishedLayers) -> FinishedLayers:
        """Record the plan; return its part to send: no pages held by the receiver, no state without
        a slot. Raises ChunkPlanError, and then records nothing."""
        if self._last_planned:
            raise ChunkPlanError(
                f"transfer {self.transfer_id}: a forward was planned after the one with the state"
            )
        end = self._end_after(plan)
        if end > self.destination.end_page:
            raise ChunkPlanError(f"transfer {self.transfer_id}: page {end - 1} was not granted")
        self._last_planned = plan.state_slot is not None
        if (
            self._last_planned
            and max(end, self.destination.first_page) != self.destination.end_page
        ):
            raise ChunkPlanError(
                f"transfer {self.transfer_id}: the last plan ends at page {end}, the grant at "
                f"{self.destination.end_page}"
            )
        if plan.local_pages:
            self._planned_end = end
        lacked = plan.without_pages_before(self.destination.first_page)
        return lacked if self.destination.slot is not None else replace(lacked, state_slot=None)

    def _end_after(self, plan: FinishedLayers) -> int:
        """Return the end page of all plans, this plan included, or the destination's first page.
        Raises ChunkPlanError on a gap or an overlap."""
        lacks = self.destination.first_page
        if not plan.local_pages:
            return lacks if self._planned_end is None else self._planned_end
        if self._planned_end is None and plan.first_logical_page > lacks:
            raise ChunkPlanError(
                f"transfer {self.transfer_id}: the first plan starts at page "
                f"{plan.first_logical_page}, the receiver lacks pages from {lacks}"
            )
        if self._planned_end is not None and plan.first_logical_page != self._planned_end:
            raise ChunkPlanError(
                f"transfer {self.transfer_id}: a plan starts at page {plan.first_logical_page}, "
                f"the one before ended at {self._planned_end}; plan whole pages, each once"
            )
        return plan.end_logical_page

    @property
    def progress(self) -> int:
        """Return a count. It grows when a chunk is planned and when one is flushed."""
        return self.next_sequence + len(self._timeline)

    @property
    def backlog_bytes(self) -> int:
        """Return the number of bytes planned and not flushed."""
        sizes = self.link.chunk_source.sizes
        waiting = sum(chunk_bytes(sizes, chunk.header) for chunk in self.waiting)
        return waiting + sum(posted.bytes for posted in self.posted)

    def append(self, chunks: list[LayerChunk]) -> None:
        """Append chunks to be sent. REQUIRES: they were cut from the result of accept(plan), and
        numbered from next_sequence."""
        self.next_sequence += len(chunks)
        self.waiting.extend(chunks)

    def has_ready(self, tick: float) -> bool:
        """Return True if a chunk can be posted once `tick` layers are counted as finished."""
        next_tick = self.next_tick
        return next_tick is not None and next_tick <= tick

    def take_ready(self, tick: float) -> LayerChunk | None:
        """Take the next waiting chunk; None without one, or if it needs a step above `tick`."""
        return self.waiting.popleft() if self.has_ready(tick) else None

    def flushed(self, posted: Posted) -> None:
        """Record a flushed chunk, its digest and its times. REQUIRES: its write has ended and its
        digest is computed. Raises the digest's error."""
        header, now, at = posted.chunk.header, posted.flushed, posted.at
        assert now is not None and at is not None
        digest = posted.digest.result()
        self._last_flush = now
        self._last_tick = max(self._last_tick, posted.chunk.tick)
        self._bytes += posted.bytes
        self._digests.append(ChunkDigest(header, digest))
        self._timeline.append(
            ChunkTiming(header.sequence, *self._finished(posted), at, now, posted.bytes)
        )

    def _finished(self, posted: Posted) -> tuple[tuple[float, ...], float]:
        """Return the finish time of each of the chunk's layers (if unknown, the start of loading).
        Also return the time when sending began."""
        header, tick = posted.chunk.header, posted.chunk.tick
        first = tick - (header.end_layer - header.first_layer) + 1
        times = self.link.source.steps.times_of(first, tick + 1)
        # Layers unknown to the counter were finished earlier; the begin of the post is the known
        # bound.
        finished = tuple(posted.begun if at is None else at for at in times)
        return finished, max(posted.begun, *finished)

    def stalled_seconds(self, now: float) -> float:
        """Return the seconds since a chunk in flight made progress; 0 with none in flight. Flushes
        of other transfers on the same link count as progress until a chunk posted after this
        transfer's oldest one is flushed. Before that, this transfer's chunks are behind the
        others'."""
        times = (posted.at for posted in self.posted)
        oldest = next((at for at in times if at is not None), None)
        if oldest is None:
            return 0.0
        moved = max(self._last_flush, oldest)
        if self.link.rate.newest_flushed <= oldest:
            moved = max(moved, self.link.rate.last_flush)
        return now - moved

    @property
    def all_taken(self) -> bool:
        """Return True if the transfer's last forward is planned and no chunk waits in the queue."""
        return self._last_planned and not self.waiting

    @property
    def complete(self) -> bool:
        """Return True if every chunk of the unstopped transfer is posted and flushed."""
        return self.all_taken and not self.stopped and not self.posted

    def stop(self, reason: str, now: float) -> None:
        """Stop the transfer and drop its waiting chunks. Idempotent; the first reason is kept."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self.stopped_at = now
            self.waiting.clear()

    def report(self, steps: StepCounter) -> SendReport:
        """Return the report of the completely sent transfer. steps: step counter of the forwards
        behind its chunks. REQUIRES: `complete` is True."""
        # The end of a forward may be unreported, or long past, as for pulled chunks: take the last
        # write.
        written = max(timing.finished for timing in self._timeline)
        forward_end = max(written, steps.end_of(self._last_tick))
        hidden, exposed = split_time(self._timeline, forward_end)
        return SendReport(
            bytes=self._bytes,
            windows=len(self._timeline),
            pages=len(self.destination.pages),
            hidden_seconds=hidden,
            exposed_seconds=exposed,
            digests=tuple(sorted(self._digests, key=lambda d: d.header.sequence)),
            timeline=tuple(sorted(self._timeline, key=lambda t: t.sequence)),
        )


class FairQueue:
    """Choice of the transfer to send from next: transfers share a sender by bytes, not by chunks.

    It is start-time fair queuing: the next transfer is the one with the fewest sent bytes. An idle
    transfer saves up no share: when it has chunks again, it starts level with the others. Owns the
    virtual time; knows neither links nor layers. Thread rule: the transfer thread. Invariant: among
    transfers always with a chunk to post, none is ahead of another by more than one chunk's bytes.
    """

    def __init__(self) -> None:
        self._now = 0

    def next(self, transfers: Sequence[OutgoingTransfer]) -> OutgoingTransfer:
        """Return the transfer to send from next, the first of equals. REQUIRES: `transfers` is not
        empty, and each could post a chunk."""
        return min(transfers, key=self._start)

    def served(self, transfer: OutgoingTransfer, size: int) -> None:
        """Record `size` bytes as sent from the chosen transfer."""
        # An idle room saves nothing up: it starts level with the others.
        self._now = self._start(transfer)
        transfer.served_until = self._now + size

    def _start(self, transfer: OutgoingTransfer) -> int:
        return max(self._now, transfer.served_until)
