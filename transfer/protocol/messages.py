"""Conversion of identities, digests, reports, timelines and usable prefixes to protobuf and back.

Values read from a peer are bounded; values impossible for a node of this version are rejected.
Timelines are for people, and must not stop a hand-over. So they are cut to a track's size, and
phases of a later version or invalid times are dropped. Names of prefixes reveal nothing of their
tokens without the salt (cpp_cache/events/prefix_hash.h). Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import NamedTuple

from tasuki.proto import handover_pb2 as pb
from tasuki.proto import report_pb2, timeline_pb2
from tasuki.pycache.weights_namespace import PREFIX_BYTES, WeightsNamespace, names_weights
from tasuki.transfer import peer_values
from tasuki.transfer.chunks.chunk import ChunkHeader
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
    KEPT_CHUNKS,
    ArrivedChunk,
    BarrierWait,
    ChunkDigest,
    Drain,
    HandoverTimeline,
    Phase,
    PhaseMark,
    ReceiverTrack,
    SenderTrack,
    SendReport,
    SentChunk,
)
from tasuki.transfer.wire import Codec, MessageT, ValueT, Wire, numbered, numbers_of

_PHASES = frozenset(numbers_of(Phase, timeline_pb2.Phase).values())
_MOST_LAYERS = 1 << 12


def _in_order(*moments: float) -> bool:
    """Return True if the times ascend, each a number of seconds within one day."""
    return all(abs(at) <= LONGEST_SECONDS for at in moments) and list(moments) == sorted(moments)


def _makes_sense(chunk: timeline_pb2.SentWindow) -> bool:
    return (
        len(chunk.layers_finished) <= _MOST_LAYERS
        and all(_in_order(at) for at in chunk.layers_finished)
        and _in_order(chunk.begun_at, chunk.posted_at, chunk.flushed_at)
        and chunk.bytes <= MOST_BYTES
    )


_MARK = Wire(PhaseMark, timeline_pb2.PhaseMark, phase=numbered(Phase, timeline_pb2.Phase))


def _phases_from_wire(phases: Iterable[timeline_pb2.PhaseMark]) -> tuple[PhaseMark, ...]:
    """Return the first time mark of each phase; drop unknown and invalid ones."""
    marks: dict[Phase, PhaseMark] = {}
    for message in phases:
        if message.phase in _PHASES and _in_order(message.at):
            mark = _MARK.from_wire(message)
            marks.setdefault(mark.phase, mark)
    return tuple(marks.values())


def _last(
    value: type[ValueT], message: type[MessageT], makes_sense: Callable[[MessageT], bool]
) -> Codec:
    """Return a codec for a track's messages. It reads the last KEPT_CHUNKS, and no invalid ones."""
    read = Wire(value, message).from_wire
    return Codec(
        lambda messages: tuple(map(read, filter(makes_sense, messages[-KEPT_CHUNKS:]))),
        lambda values: [message(**vars(value)) for value in values],
    )


_MARKS = Codec(_phases_from_wire, lambda marks: [*map(_MARK.to_wire, marks)])
SENDER_TRACK = Wire(
    SenderTrack,
    timeline_pb2.SenderTrack,
    phases=_MARKS,
    windows=_last(SentChunk, timeline_pb2.SentWindow, _makes_sense),
)
TIMELINE = Wire(
    HandoverTimeline,
    timeline_pb2.HandoverTimeline,
    sender=SENDER_TRACK,
    receiver=Wire(
        ReceiverTrack,
        timeline_pb2.ReceiverTrack,
        phases=_MARKS,
        windows=_last(
            ArrivedChunk,
            timeline_pb2.LandedWindow,
            lambda chunk: _in_order(chunk.landed_at, chunk.verified_at),
        ),
        waits=_last(
            BarrierWait,
            timeline_pb2.BarrierWait,
            lambda wait: _in_order(wait.began_at, wait.ended_at),
        ),
    ),
)


MOST_PREFIXES = 4096
"""Most prefixes of one batch, removed and stored prefixes together."""
NAME_BYTES = 16
_MOST_TOKENS = 2**31 - 1


class UsablePrefix(NamedTuple):
    """Prefix usable on a prefill node, by its hashed name. parent: name of the prefix's whole pages
    before its last page or part of a page. tokens: length of the prefix."""

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
    """Return (removed, stored) prefixes of a batch. Raises PeerInvalid naming the field."""
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


_LARGEST_METADATA = 1 << 20
_MOST_SLABS = 1 << 32
_MOST_RANKS = 64
_MOST_CHUNKS = 1 << 20
_PROCESS = Wire(ProcessIdentity, pb.Process).bounded("node.process")


def node_to_wire(node: NodeIdentity) -> pb.Node:
    (arena,) = node.arenas
    return pb.Node(
        name=node.name,
        epoch=node.epoch,
        process=_PROCESS.to_wire(node.process),
        transport=node.transport,
        transport_metadata=arena.transport_metadata,
        slabs=arena.slabs,
        ranks=arena.ranks,
        transport_checksum=metadata_checksum(arena.transport_metadata),
    )


def node_from_wire(node: pb.Node) -> NodeIdentity:
    """Return the peer's identity; 0 ranks read as 1. Raises PeerInvalid naming the field;
    MetadataUnusable if the checksum of the transport metadata differs."""
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
    return NodeIdentity(
        name=name,
        epoch=node.epoch,
        process=_PROCESS.from_wire(node.process),
        transport=peer_values.name(node.transport, "node.transport"),
        arenas=(
            ArenaAddress(
                metadata,
                peer_values.count(node.slabs, "node.slabs", _MOST_SLABS),
                ranks=max(1, peer_values.count(node.ranks, "node.ranks", _MOST_RANKS)),
            ),
        ),
    )


def weights_from_wire(prefix: bytes) -> WeightsNamespace:
    """Return the namespace of a peer's weights. Raises PeerInvalid."""
    if prefix and not (names_weights(prefix) and len(prefix) == PREFIX_BYTES):
        raise PeerInvalid(f"weights has {len(prefix)} bytes, and names no weights")
    return WeightsNamespace(prefix)


def lease_from_wire(lease_seconds: float) -> float:
    """Return a writer's lease in seconds, if within the bounds. After the writer is lost, memory
    granted to it stays in quarantine for one lease. Raises PeerInvalid."""
    return peer_values.seconds(lease_seconds, "lease_seconds", peer_values.LONGEST_LEASE)


_of_header = attrgetter(*(field.name for field in fields(ChunkHeader)))
_REPORT = Wire(SendReport, report_pb2.TransferReport, apart=["digests", "timeline", "track"])


def chunks_to_wire(digests: Sequence[ChunkDigest]) -> list[pb.Window]:
    return [pb.Window(digest=chunk.digest, **vars(chunk.header)) for chunk in digests]


def chunks_from_wire(chunks: Sequence[pb.Window]) -> tuple[ChunkDigest, ...]:
    """Return the headers and digests of the layer chunks. Raises PeerInvalid if there are more
    chunks than a transfer can have."""
    peer_values.count(len(chunks), "windows", _MOST_CHUNKS)
    return tuple(ChunkDigest(ChunkHeader(*_of_header(chunk)), chunk.digest) for chunk in chunks)


def report_to_wire(report: SendReport, track: SenderTrack) -> report_pb2.TransferReport:
    return _REPORT.to_wire(report, track=SENDER_TRACK.to_wire(track))


def drain_to_wire(drain: Drain) -> pb.Drain:
    return pb.DRAIN_DRAINED if drain is Drain.DRAINED else pb.DRAIN_FORCED


def drain_from_wire(drain: pb.Drain) -> Drain:
    """Return how the posted writes ended; an unknown value proves no drain: FORCED."""
    return Drain.DRAINED if drain == pb.DRAIN_DRAINED else Drain.FORCED
