"""Identities, digests and reports as protobuf; this and timeline_wire.py alone know proto in
transfer."""

from collections.abc import Iterable, Sequence

from ..proto import handover_pb2 as pb
from .fence import ProcessIdentity
from .node_identity import NodeIdentity
from .outgoing import Drain
from .report import SendReport, WindowDigest
from .timeline import SenderTrack
from .timeline_wire import sender_track_to_wire
from .windows import WindowHeader


def node_to_wire(node: NodeIdentity) -> pb.Node:
    process = node.process
    return pb.Node(
        name=node.name,
        epoch=node.epoch,
        process=pb.Process(
            boot_id=process.boot_id,
            pid_namespace=process.pid_namespace,
            pid=process.pid,
            start_ticks=process.start_ticks,
        ),
        transport=node.transport,
        transport_metadata=node.transport_metadata,
        slabs=node.slabs,
    )


def node_from_wire(node: pb.Node) -> NodeIdentity:
    process = node.process
    return NodeIdentity(
        name=node.name,
        epoch=node.epoch,
        process=ProcessIdentity(
            process.boot_id, process.pid_namespace, process.pid, process.start_ticks
        ),
        transport=node.transport,
        transport_metadata=node.transport_metadata,
        slabs=node.slabs,
    )


def windows_to_wire(digests: Sequence[WindowDigest]) -> list[pb.Window]:
    return [
        pb.Window(
            sequence=header.sequence,
            first_layer=header.first_layer,
            end_layer=header.end_layer,
            first_page=header.first_page,
            pages=header.pages,
            carries_state=header.carries_state,
            digest=window.digest,
        )
        for window in digests
        for header in (window.header,)
    ]


def report_to_wire(report: SendReport, track: SenderTrack) -> pb.Report:
    return pb.Report(
        bytes=report.bytes,
        windows=report.windows,
        pages=report.pages,
        hidden_seconds=report.hidden_seconds,
        exposed_seconds=report.exposed_seconds,
        track=sender_track_to_wire(track),
    )


def windows_from_wire(windows: Iterable[pb.Window]) -> tuple[WindowDigest, ...]:
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
