"""Reports of one transfer: bytes, digests, and the times of each side's steps.

`SendReport`: bytes and digests of a finished hand-over, and the part of its time hidden behind the
forward's compute. `HandoverTimeline`: times of the steps of one hand-over or one pull, on each
side's own clock.

The two sides' tracks are never merged, because the clocks of two hosts cannot be subtracted. A
track counts seconds of its side's monotonic clock. The sender's track begins when Reserve arrives,
the receiver's when Reserve is sent. For a pull, Pull is the first message instead. Both tracks
identify layer chunks by the same sequence numbers. Holds no transfer and no thread; plain values,
with at most KEPT_CHUNKS chunks a track.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tasuki.transfer.chunks.chunk import ChunkHeader


class Drain(Enum):
    """End of a stopped transfer's posted writes: surely ended, or given up."""

    DRAINED = "all of them finished or failed: no write can arrive any more"
    FORCED = "given up after a deadline, or the wire broke: a write may still arrive"


@dataclass(frozen=True)
class ChunkDigest:
    header: ChunkHeader
    digest: int


@dataclass(frozen=True)
class ChunkTiming:
    """Times of a sent layer chunk, in seconds of the sender's monotonic clock.

    layers_finished: for each layer, when its KV and state were written. begun: sending began.
    posted: given to the transport. flushed: in the receiver's memory.
    """

    sequence: int
    layers_finished: tuple[float, ...]
    begun: float
    posted: float
    flushed: float
    bytes: int

    @property
    def finished(self) -> float:
        """Return the finish time of the chunk's last layer, before which it cannot be sent."""
        return self.layers_finished[-1]


@dataclass(frozen=True)
class SendReport:
    """Report of a completely sent transfer. pages: number of distinct logical pages sent.
    hidden_seconds: time of sending before the transfer's last forward ended (hidden behind its
    compute). exposed_seconds: time from this end to the last flush."""

    bytes: int
    windows: int
    pages: int
    hidden_seconds: float
    exposed_seconds: float
    digests: tuple[ChunkDigest, ...]
    timeline: tuple[ChunkTiming, ...]


def split_time(timeline: Sequence[ChunkTiming], forward_end: float) -> tuple[float, float]:
    """Return (hidden, exposed) seconds of sending. Overlapping chunks count once, idle time between
    chunks not at all. forward_end: time when the transfer's last forward ended; math.inf while it
    runs."""
    hidden, covered = 0.0, float("-inf")
    for chunk in sorted(timeline, key=lambda w: w.begun):
        start = max(chunk.begun, covered)
        end = min(chunk.flushed, forward_end)
        if end > start:
            hidden += end - start
        covered = max(covered, chunk.flushed)
    return hidden, max(0.0, covered - forward_end)


KEPT_CHUNKS = 256
"""Most chunks kept in a track: the last ones, because exposed time is at a hand-over's end."""


class Phase(Enum):
    """Phase of the three-phase commit, passed by both sides.

    A pull's destination comes with its first message; a pull sends no token, and does not notify
    its receiver of the start. Its phases are GRANTED, ACCEPTED at the sender, DONE, VERIFIED.
    """

    ACCEPTED = "the sender is about to start"
    GRANTED = "the receiver's pages and slot are sent"
    READY = "the first token is sent"
    DONE = "the final status is sent: every layer chunk is flushed"
    VERIFIED = "every layer chunk arrived and every digest is equal"


@dataclass(frozen=True)
class PhaseMark:
    phase: Phase
    at: float


@dataclass(frozen=True)
class SentChunk:
    """Sent layer chunk with its times: layers [first_layer, first_layer + len(layers_finished)),
    logical pages [first_page, first_page + pages), and the state if carries_state.

    layers_finished[i]: time when KV and state of layer first_layer + i had been written. begun_at:
    sending began. posted_at: it was given to the transport. flushed_at: it was in the receiver's
    memory. A chunk with first_layer 0 begins a forward. Layers of earlier forwards, such as all
    layers of a pull, count as finished when their chunk was begun.
    """

    sequence: int
    first_layer: int
    layers_finished: tuple[float, ...]
    first_page: int
    pages: int
    carries_state: bool
    bytes: int
    begun_at: float
    posted_at: float
    flushed_at: float

    @property
    def end_layer(self) -> int:
        return self.first_layer + len(self.layers_finished)


@dataclass(frozen=True)
class ArrivedChunk:
    """Arrived layer chunk. landed_at: time when its notification was taken. verified_at: time when
    its digest was known."""

    sequence: int
    landed_at: float
    verified_at: float


@dataclass(frozen=True)
class BarrierWait:
    """Wait of a computing thread at the layer barrier, until the layer's bytes had arrived."""

    layer: int
    began_at: float
    ended_at: float


@dataclass(frozen=True)
class SenderTrack:
    phases: tuple[PhaseMark, ...]
    windows: tuple[SentChunk, ...]


@dataclass(frozen=True)
class ReceiverTrack:
    phases: tuple[PhaseMark, ...]
    windows: tuple[ArrivedChunk, ...]
    waits: tuple[BarrierWait, ...]


@dataclass(frozen=True)
class HandoverTimeline:
    """Timeline of a hand-over or of a pull: the tracks of both sides."""

    sender: SenderTrack
    receiver: ReceiverTrack


class PhaseMarks:
    """Start time of a transfer on one side, and the time of each passed phase. Pure: the caller
    gives the time.

    Invariant: a phase is marked once; later marks change nothing.
    """

    def __init__(self, began: float) -> None:
        """began: start time in seconds of this side's clock; tracks count from it."""
        self._marks: dict[Phase, float] = {}
        self.began = began

    def mark(self, phase: Phase, now: float) -> None:
        self._marks.setdefault(phase, now - self.began)

    @property
    def marks(self) -> tuple[PhaseMark, ...]:
        """Return the time of each passed phase, in the order of passing."""
        return tuple(PhaseMark(phase, at) for phase, at in self._marks.items())


def sender_track(report: SendReport, phases: PhaseMarks) -> SenderTrack:
    """Return the sender's track of times, with the last KEPT_CHUNKS chunks. REQUIRES: the report's
    times and `phases` use one clock."""
    headers = {chunk.header.sequence: chunk.header for chunk in report.digests}
    began = phases.began
    chunks = []
    for timing in report.timeline[-KEPT_CHUNKS:]:
        header = headers[timing.sequence]
        chunks.append(
            SentChunk(
                sequence=timing.sequence,
                first_layer=header.first_layer,
                layers_finished=tuple(at - began for at in timing.layers_finished),
                first_page=header.first_page,
                pages=header.pages,
                carries_state=header.carries_state,
                bytes=timing.bytes,
                begun_at=timing.begun - began,
                posted_at=timing.posted - began,
                flushed_at=timing.flushed - began,
            )
        )
    return SenderTrack(phases.marks, tuple(chunks))


def receiver_track(
    arrivals: Sequence[ArrivedChunk], waits: Sequence[BarrierWait], phases: PhaseMarks
) -> ReceiverTrack:
    """Return the receiver's track of times. arrivals, waits: with times of the clock used by
    `phases`."""
    began = phases.began
    return ReceiverTrack(
        phases.marks,
        tuple(
            ArrivedChunk(item.sequence, item.landed_at - began, item.verified_at - began)
            for item in arrivals
        ),
        tuple(
            BarrierWait(wait.layer, wait.began_at - began, wait.ended_at - began) for wait in waits
        ),
    )


@dataclass(frozen=True)
class TransferSent:
    """Transfer completely sent: every layer chunk is flushed."""

    transfer_id: int
    report: SendReport


@dataclass(frozen=True)
class TransferBroke:
    """Transfer stopped by its sender: lease lost, transport failed or plan rejected.
    endpoint_failed: the transport failed, so the next transfer to this peer would fail too."""

    transfer_id: int
    reason: str
    drain: Drain
    endpoint_failed: bool


TransferEnd = TransferSent | TransferBroke


@dataclass
class SenderCounters:
    """Counts of a sender since its start; they only grow.

    Thread rule: the transfer thread counts, any thread reads. rooms: number of transfers by end:
    `sent` completely, `broken`, or `forced` (given up before their writes had drained). The other
    counts cover completely sent transfers.
    """

    rooms: dict[str, int] = field(default_factory=lambda: {"sent": 0, "broken": 0, "forced": 0})
    windows: int = 0
    bytes: int = 0
    hidden_seconds: float = 0.0
    exposed_seconds: float = 0.0

    def count(self, end: TransferEnd) -> None:
        if not isinstance(end, TransferSent):
            self.rooms["forced" if end.drain is Drain.FORCED else "broken"] += 1
            return
        self.rooms["sent"] += 1
        self.windows += end.report.windows
        self.bytes += end.report.bytes
        self.hidden_seconds += end.report.hidden_seconds
        self.exposed_seconds += end.report.exposed_seconds
