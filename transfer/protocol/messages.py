"""Identities, digests and reports as protobuf; this and timeline_messages.py alone know
proto in transfer.

What is read from a peer is bounded, and what no node of this version sends is refused.
"""

from collections.abc import Sequence

from tasuki.proto import handover_pb2 as pb
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
from tasuki.transfer.reports import Drain, SenderTrack, SendReport, WindowDigest
from tasuki.transfer.windows.window import WindowHeader

from .timeline_messages import sender_track_to_wire


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
