"""The timeline of a hand-over is in order, bounded, and unchanged by the wire."""

import asyncio
import time
from dataclasses import replace

from tasuki.engine import messages as m
from tasuki.server.request_records import RequestLog
from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.protocol.messages import TIMELINE
from tasuki.transfer.reports import (
    KEPT_CHUNKS,
    ArrivedChunk,
    BarrierWait,
    ChunkDigest,
    ChunkTiming,
    HandoverTimeline,
    Phase,
    PhaseMark,
    PhaseMarks,
    SendReport,
    receiver_track,
    sender_track,
)
from tests.harness.handover_nodes import nodes
from tests.harness.loopback_pair import TRANSFER_ID, loopback_pair
from tests.harness.waiting import HANG_SECONDS

PHASES = (Phase.ACCEPTED, Phase.GRANTED, Phase.READY, Phase.DONE)


def marked(start: float, **marks: float) -> PhaseMarks:
    """Return a clock started at `start`, with each phase marked at its time."""
    clock = PhaseMarks(start)
    for name, at in marks.items():
        clock.mark(Phase[name], at)
    return clock


def report(chunks: int) -> SendReport:
    return SendReport(
        bytes=8 * chunks,
        windows=chunks,
        pages=1,
        hidden_seconds=0.5,
        exposed_seconds=0.25,
        digests=tuple(
            ChunkDigest(ChunkHeader(i, i % 4, i % 4 + 1, 0, 1, False), i) for i in range(chunks)
        ),
        timeline=tuple(
            ChunkTiming(i, (100.0 + i,), 100.25 + i, 100.5 + i, 101.0 + i, 8) for i in range(chunks)
        ),
    )


def example(chunks: int = 5) -> HandoverTimeline:
    clock = marked(100.0, ACCEPTED=101.0, READY=102.0)
    arrivals = [ArrivedChunk(i, 200.0 + i, 200.5 + i) for i in range(chunks)]
    return HandoverTimeline(
        sender_track(report(chunks), clock),
        receiver_track(arrivals, [BarrierWait(2, 203.0, 204.0)], marked(200.0)),
    )


def test_tracks_count_from_their_own_sides_start() -> None:
    timeline = example()
    marks = (PhaseMark(Phase.ACCEPTED, 1.0), PhaseMark(Phase.READY, 2.0))
    assert timeline.sender.phases == marks
    third = timeline.sender.windows[2]
    assert third.layers_finished == (2.0,)
    assert (third.begun_at, third.posted_at, third.flushed_at) == (2.25, 2.5, 3.0)
    assert (third.first_layer, third.end_layer, third.bytes) == (2, 3, 8)
    assert timeline.receiver.windows[3] == ArrivedChunk(3, 3.0, 3.5)
    assert timeline.receiver.waits == (BarrierWait(2, 3.0, 4.0),)


def test_a_phase_is_marked_once() -> None:
    clock = PhaseMarks(0.0)
    clock.mark(Phase.READY, 1.0)
    clock.mark(Phase.READY, 2.0)
    assert clock.marks == (PhaseMark(Phase.READY, 1.0),)


def test_the_wire_changes_nothing_and_the_last_windows_are_kept() -> None:
    timeline = example(KEPT_CHUNKS + 3)
    assert [w.sequence for w in timeline.sender.windows] == list(range(3, KEPT_CHUNKS + 3))
    wire = TIMELINE.to_wire(timeline)
    assert TIMELINE.from_wire(wire).sender == timeline.sender
    # A track longer than its limit is cut.
    wire.receiver.windows.extend(list(wire.receiver.windows))
    assert len(TIMELINE.from_wire(wire).receiver.windows) == KEPT_CHUNKS
    wire.sender.phases[0].phase = 77  # type: ignore[assignment]
    assert [mark.phase for mark in TIMELINE.from_wire(wire).sender.phases] == [Phase.READY]


def test_the_barrier_records_who_waited_and_nobody_else() -> None:
    with loopback_pair() as pair:
        pair.hand_over()
        pair.sent()
        phases = PhaseMarks(time.monotonic())
        assert pair.layer_opens(TRANSFER_ID, 0, HANG_SECONDS)
        before = pair.receiver.track(TRANSFER_ID, phases)
        assert not pair.layer_opens(TRANSFER_ID + 1, 0, 0.01)
        assert pair.receiver.track(TRANSFER_ID, phases).waits == before.waits
        assert pair.receiver.track(TRANSFER_ID + 1, phases).windows == ()


def test_a_hand_over_says_when_what_happened_on_both_sides() -> None:
    async def scenario() -> m.RemoteDone:
        async with nodes() as both:
            await both.connected()
            await both.grant(TRANSFER_ID)
            both.compute(TRANSFER_ID)
            both.say_token(TRANSFER_ID)
            done = await both.decode.wait(m.RemoteDone, TRANSFER_ID)
            assert isinstance(done, m.RemoteDone)
            return done

    transfer = asyncio.run(scenario()).transfer
    assert transfer.timeline is not None
    sender, receiver = transfer.timeline.sender, transfer.timeline.receiver
    assert tuple(mark.phase for mark in sender.phases) == PHASES
    assert tuple(mark.phase for mark in receiver.phases) == (*PHASES, Phase.VERIFIED)
    for track in (sender, receiver):
        times = [mark.at for mark in track.phases]
        assert times == sorted(times) and times[0] >= 0
    assert sum(chunk.bytes for chunk in sender.windows) == transfer.bytes
    assert len(sender.windows) == len(receiver.windows) == transfer.windows
    for chunk in sender.windows:
        assert chunk.layers_finished[-1] <= chunk.begun_at <= chunk.posted_at
        assert chunk.posted_at <= chunk.flushed_at
    assert all(chunk.landed_at <= chunk.verified_at for chunk in receiver.windows)


PULLED = m.PullReport(1, 1, 0.1, example())


def finished(name: str) -> m.Finished:
    transfer = m.TransferReport(1, 1, 1, 0.0, 0.0, example())
    usage = m.Usage(1, 1, None, transfer, "prefill-0", False, 0.1, 0.2, PULLED)
    return m.Finished(m.RequestId(name), m.FinishReason.STOP, usage)


def test_timelines_are_remembered_of_fewer_requests_than_ends() -> None:
    log = RequestLog(lambda: 0.0, capacity=8, timelines=2)
    for name in "abcd":
        log.add(finished(name))
    kept = {}
    for name in "abcd":
        found = log.find(name)
        assert found is not None and isinstance(found[0].end, m.Finished)
        transfer, pulled = found[0].end.usage.transfer, found[0].end.usage.pulled
        assert transfer is not None and pulled is not None
        assert replace(transfer, timeline=None) == m.TransferReport(1, 1, 1, 0.0, 0.0)
        assert replace(pulled, timeline=None) == replace(PULLED, timeline=None)
        assert (pulled.timeline is None) == (transfer.timeline is None)
        kept[name] = transfer.timeline is not None
    assert kept == {"a": False, "b": False, "c": True, "d": True}
