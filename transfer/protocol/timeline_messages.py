"""Timelines as protobuf.

What comes from a peer is cut to what a track may hold, and what makes no sense here, phases of a
later version or moments that are no numbers, is dropped: a timeline is for people, and none may
stand in the way of a hand-over. Windows and waits have the messages' fields, by the same names.
"""

from collections.abc import Iterable, Sequence

from tasuki.proto import timeline_pb2 as pb
from tasuki.transfer.peer_values import LONGEST_SECONDS, MOST_BYTES
from tasuki.transfer.reports import (
    KEPT_WINDOWS,
    BarrierWait,
    HandoverTimeline,
    LandedWindow,
    Phase,
    PhaseMark,
    ReceiverTrack,
    SenderTrack,
    SentWindow,
)

_TO_WIRE = {
    Phase.ACCEPTED: pb.PHASE_ACCEPTED,
    Phase.GRANTED: pb.PHASE_GRANTED,
    Phase.READY: pb.PHASE_READY,
    Phase.DONE: pb.PHASE_DONE,
    Phase.VERIFIED: pb.PHASE_VERIFIED,
}
_FROM_WIRE = {wire: phase for phase, wire in _TO_WIRE.items()}
_MOST_LAYERS = 1 << 12


def timeline_to_wire(timeline: HandoverTimeline) -> pb.HandoverTimeline:
    receiver = timeline.receiver
    return pb.HandoverTimeline(
        sender=sender_track_to_wire(timeline.sender),
        receiver=pb.ReceiverTrack(
            phases=_phases_to_wire(receiver.phases),
            windows=[pb.LandedWindow(**vars(window)) for window in receiver.windows],
            waits=[pb.BarrierWait(**vars(wait)) for wait in receiver.waits],
        ),
    )


def timeline_from_wire(timeline: pb.HandoverTimeline) -> HandoverTimeline:
    receiver = timeline.receiver
    return HandoverTimeline(
        sender_track_from_wire(timeline.sender),
        ReceiverTrack(
            _phases_from_wire(receiver.phases),
            tuple(
                LandedWindow(w.sequence, w.landed_at, w.verified_at)
                for w in receiver.windows[-KEPT_WINDOWS:]
                if _in_order(w.landed_at, w.verified_at)
            ),
            tuple(
                BarrierWait(w.layer, w.began_at, w.ended_at)
                for w in receiver.waits[-KEPT_WINDOWS:]
                if _in_order(w.began_at, w.ended_at)
            ),
        ),
    )


def sender_track_to_wire(track: SenderTrack) -> pb.SenderTrack:
    return pb.SenderTrack(
        phases=_phases_to_wire(track.phases),
        windows=[pb.SentWindow(**vars(window)) for window in track.windows],
    )


def sender_track_from_wire(track: pb.SenderTrack) -> SenderTrack:
    return SenderTrack(
        _phases_from_wire(track.phases),
        tuple(
            SentWindow(
                sequence=window.sequence,
                first_layer=window.first_layer,
                layers_finished=tuple(window.layers_finished),
                first_page=window.first_page,
                pages=window.pages,
                carries_state=window.carries_state,
                bytes=window.bytes,
                begun_at=window.begun_at,
                posted_at=window.posted_at,
                flushed_at=window.flushed_at,
            )
            for window in track.windows[-KEPT_WINDOWS:]
            if _makes_sense(window)
        ),
    )


def _makes_sense(window: pb.SentWindow) -> bool:
    return (
        len(window.layers_finished) <= _MOST_LAYERS
        and all(_in_order(at) for at in window.layers_finished)
        and _in_order(window.begun_at, window.posted_at, window.flushed_at)
        and window.bytes <= MOST_BYTES
    )


def _in_order(*moments: float) -> bool:
    """Whether each is a number of this side of a day, and none is before the one before it."""
    return all(abs(at) <= LONGEST_SECONDS for at in moments) and list(moments) == sorted(moments)


def _phases_to_wire(phases: Sequence[PhaseMark]) -> list[pb.PhaseMark]:
    return [pb.PhaseMark(phase=_TO_WIRE[mark.phase], at=mark.at) for mark in phases]


def _phases_from_wire(phases: Iterable[pb.PhaseMark]) -> tuple[PhaseMark, ...]:
    """Each phase once, as it was marked first."""
    marks: dict[Phase, PhaseMark] = {}
    for mark in phases:
        if mark.phase in _FROM_WIRE and _in_order(mark.at):
            phase = _FROM_WIRE[mark.phase]
            marks.setdefault(phase, PhaseMark(phase, mark.at))
    return tuple(marks.values())
