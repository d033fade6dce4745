"""Identities, digests, reports, timelines and usable prefixes as protobuf.

What is read from a peer is bounded, and what no node of this version sends is refused. Timelines
are for people, and none may stand in the way of a hand-over: they are cut to what a track may hold,
and phases of a later version or moments that are no numbers are dropped. Their windows and waits
have the messages' fields, by the same names. Names of prefixes reveal nothing of their tokens
without the salt (cpp_cache/events/prefix_hash.h). Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tasuki.proto import handover_pb2 as pb
from tasuki.proto import timeline_pb2
from tasuki.proto.report_pb2 import TransferReport
from tasuki.transfer import peer_values
from tasuki.transfer.errors import MetadataUnusable, PeerInvalid
from tasuki.transfer.node_identity import (
    EPOCH_BYTES,
    ArenaAddress,
    NodeIdentity,
    ProcessIdentity,
    metadata_checksum,
)
from tasuki.transfer.peer_values import LONGEST_SECONDS, MOST_BYTES
from tasuki.transfer.reports import (
    KEPT_WINDOWS,
    BarrierWait,
    Drain,
    HandoverTimeline,
    LandedWindow,
    Phase,
    PhaseMark,
    ReceiverTrack,
    SenderTrack,
    SendReport,
    SentWindow,
    WindowDigest,
)
from tasuki.transfer.windows.window import WindowHeader

_TO_WIRE = {
    Phase.ACCEPTED: timeline_pb2.PHASE_ACCEPTED,
    Phase.GRANTED: timeline_pb2.PHASE_GRANTED,
    Phase.READY: timeline_pb2.PHASE_READY,
    Phase.DONE: timeline_pb2.PHASE_DONE,
    Phase.VERIFIED: timeline_pb2.PHASE_VERIFIED,
}
_FROM_WIRE = {wire: phase for phase, wire in _TO_WIRE.items()}
_MOST_LAYERS = 1 << 12


def timeline_to_wire(timeline: HandoverTimeline) -> timeline_pb2.HandoverTimeline:
    receiver = timeline.receiver
    return timeline_pb2.HandoverTimeline(
        sender=sender_track_to_wire(timeline.sender),
        receiver=timeline_pb2.ReceiverTrack(
            phases=_phases_to_wire(receiver.phases),
            windows=[timeline_pb2.LandedWindow(**vars(window)) for window in receiver.windows],
            waits=[timeline_pb2.BarrierWait(**vars(wait)) for wait in receiver.waits],
        ),
    )


def timeline_from_wire(timeline: timeline_pb2.HandoverTimeline) -> HandoverTimeline:
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


def sender_track_to_wire(track: SenderTrack) -> timeline_pb2.SenderTrack:
    return timeline_pb2.SenderTrack(
        phases=_phases_to_wire(track.phases),
        windows=[timeline_pb2.SentWindow(**vars(window)) for window in track.windows],
    )


def sender_track_from_wire(track: timeline_pb2.SenderTrack) -> SenderTrack:
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


def _makes_sense(window: timeline_pb2.SentWindow) -> bool:
    return (
        len(window.layers_finished) <= _MOST_LAYERS
        and all(_in_order(at) for at in window.layers_finished)
        and _in_order(window.begun_at, window.posted_at, window.flushed_at)
        and window.bytes <= MOST_BYTES
    )


def _in_order(*moments: float) -> bool:
    """Whether each is a number of this side of a day, and none is before the one before it."""
    return all(abs(at) <= LONGEST_SECONDS for at in moments) and list(moments) == sorted(moments)


def _phases_to_wire(phases: Sequence[PhaseMark]) -> list[timeline_pb2.PhaseMark]:
    return [timeline_pb2.PhaseMark(phase=_TO_WIRE[mark.phase], at=mark.at) for mark in phases]


def _phases_from_wire(phases: Iterable[timeline_pb2.PhaseMark]) -> tuple[PhaseMark, ...]:
    """Each phase once, as it was marked first."""
    marks: dict[Phase, PhaseMark] = {}
    for mark in phases:
        if mark.phase in _FROM_WIRE and _in_order(mark.at):
            phase = _FROM_WIRE[mark.phase]
            marks.setdefault(phase, PhaseMark(phase, mark.at))
    return tuple(marks.values())


MOST_PREFIXES = 4096
"""Of one batch, those that go and those that come together."""
NAME_BYTES = 16
_MOST_TOKENS = 2**31 - 1


class UsablePrefix(NamedTuple):
    """parent: the name of the whole pages before the last page or part of one. tokens: its
    length."""

    name: bytes
    parent: bytes
    tokens: int


def in_batches(prefixes: Sequence[UsablePrefix]) -> Iterator[Sequence[UsablePrefix]]:
    for first in range(0, len(prefixes), MOST_PREFIXES):
        yield prefixes[first : first + MOST_PREFIXES]


def prefixes_to_wire(prefixes: Sequence[UsablePrefix]) -> pb.Prefixes:
    return pb.Prefixes(
        names=b"".join(prefix.name for prefix in prefixes),
        parents=b"".join(prefix.parent for prefix in prefixes),
        tokens=[prefix.tokens for prefix in prefixes],
    )


def prefixes_from_wire(batch: pb.UsableBatch) -> tuple[list[UsablePrefix], list[UsablePrefix]]:
    """Those that go, and those that come. Raises PeerInvalid naming the field."""
    count = len(batch.removed.tokens) + len(batch.stored.tokens)
    if count > MOST_PREFIXES:
        raise PeerInvalid(f"usable: a batch has {count} prefixes, at most {MOST_PREFIXES}")
    return _read(batch.removed, "removed"), _read(batch.stored, "stored")


def _read(prefixes: pb.Prefixes, field: str) -> list[UsablePrefix]:
    tokens, names, parents = prefixes.tokens, prefixes.names, prefixes.parents
    for name, column in (("names", names), ("parents", parents)):
        if len(column) != NAME_BYTES * len(tokens):
            raise PeerInvalid(
                f"usable.{field}.{name} has {len(column)} bytes, {NAME_BYTES} are of each of "
                f"{len(tokens)} prefixes"
            )
    if any(not 0 < length <= _MOST_TOKENS for length in tokens):
        raise PeerInvalid(f"usable.{field}.tokens has one that is not in [1, {_MOST_TOKENS}]")
    return [
        UsablePrefix(names[at : at + NAME_BYTES], parents[at : at + NAME_BYTES], length)
        for at, length in zip(range(0, len(names), NAME_BYTES), tokens, strict=True)
    ]


def node_to_wire(node: NodeIdentity) -> pb.Node:
    (arena,) = node.arenas
    return pb.Node(
        name=node.name,
        epoch=node.epoch,
        process=pb.Process(**vars(node.process)),
        transport=node.transport,
        transport_metadata=arena.transport_metadata,
        slabs=arena.slabs,
        ranks=arena.ranks,
        transport_checksum=metadata_checksum(arena.transport_metadata),
    )


_LARGEST_METADATA = 1 << 20
_HIGHEST_PID = 1 << 22
_MOST_SLABS = 1 << 32
_MOST_RANKS = 64
_MOST_WINDOWS = 1 << 20
_LONGEST_LEASE = 600.0


def node_from_wire(node: pb.Node) -> NodeIdentity:
    """Raises PeerInvalid naming the field, MetadataUnusable where the metadata are not what was
    sent."""
    if len(node.epoch) != EPOCH_BYTES:
        raise PeerInvalid(f"node.epoch has {len(node.epoch)} bytes, not {EPOCH_BYTES}")
    metadata = node.transport_metadata
    if len(metadata) > _LARGEST_METADATA:
        raise PeerInvalid(f"node.transport_metadata has {len(metadata)} bytes: too many")
    name = peer_values.name(node.name, "node.name")
    if node.transport_checksum != metadata_checksum(metadata):
        raise MetadataUnusable(
            f"transport metadata of {name or 'a peer'} are damaged: their checksum differs"
        )
    process = node.process
    return NodeIdentity(
        name=name,
        epoch=node.epoch,
        process=ProcessIdentity(
            peer_values.name(process.boot_id, "node.process.boot_id"),
            process.pid_namespace,
            peer_values.count(process.pid, "node.process.pid", _HIGHEST_PID),
            process.start_ticks,
        ),
        transport=peer_values.name(node.transport, "node.transport"),
        arenas=(
            ArenaAddress(
                metadata,
                peer_values.count(node.slabs, "node.slabs", _MOST_SLABS),
                ranks=max(1, peer_values.count(node.ranks, "node.ranks", _MOST_RANKS)),
            ),
        ),
    )


def lease_from_wire(lease_seconds: float) -> float:
    """A writer's lease: what it may write to stays quarantined for that long after it is lost.
    Raises PeerInvalid."""
    return peer_values.seconds(lease_seconds, "lease_seconds", _LONGEST_LEASE)


def windows_to_wire(digests: Sequence[WindowDigest]) -> list[pb.Window]:
    return [pb.Window(digest=window.digest, **vars(window.header)) for window in digests]


def report_to_wire(report: SendReport, track: SenderTrack) -> TransferReport:
    return TransferReport(
        bytes=report.bytes,
        windows=report.windows,
        pages=report.pages,
        hidden_seconds=report.hidden_seconds,
        exposed_seconds=report.exposed_seconds,
        track=sender_track_to_wire(track),
    )


def windows_from_wire(windows: Sequence[pb.Window]) -> tuple[WindowDigest, ...]:
    """Raises PeerInvalid where there are more than any room has."""
    peer_values.count(len(windows), "windows", _MOST_WINDOWS)
    return tuple(
        WindowDigest(
            WindowHeader(
                window.sequence,
                window.first_layer,
                window.end_layer,
                window.first_page,
                window.pages,
                window.carries_state,
            ),
            window.digest,
        )
        for window in windows
    )


_DRAINS = {
    Drain.DRAINED: pb.DRAIN_DRAINED,
    Drain.FORCED: pb.DRAIN_FORCED,
}


def drain_to_wire(drain: Drain) -> pb.Drain:
    return _DRAINS[drain]


def drain_from_wire(drain: pb.Drain) -> Drain:
    """What is not known to be drained is not: an unknown value reads as FORCED."""
    return Drain.DRAINED if drain == pb.DRAIN_DRAINED else Drain.FORCED
