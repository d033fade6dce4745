"""One node's access to transfers: its registered arena, its sender and its receiver.

`DataPlane`: the registered arena, its digester, the source and the sink of its layer chunks, its
contract and its identity. If the wire is not exact, the arena's last slabs are kept back for
encoded chunks on their way out.

`TransferEngine`: the two ends of every node of a pair: a sender of bytes from its arena and a
receiver of bytes into it. Owns both, over one borrowed data plane. Knows no role: the node decides
if hand-overs leave and pulls come, or the reverse. Thread rule: start and stop block, once each, on
any thread allowed to wait.
"""

from dataclasses import dataclass

import torch

from tasuki.pycache.layout import ONLY_ARENA, ArenaKey, CacheLayout
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.chunks.descriptors import TransferUnits
from tasuki.transfer.chunks.digest import ChunkDigester, Digester
from tasuki.transfer.precision.encoding_source import EncodingSource, StagingBuffer, slabs_kept_back
from tasuki.transfer.precision.layer_codec import LayerCodec, TorchLayerCodec
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.protocol.contract import NOT_USED, Contract
from tasuki.transfer.ranks.ranked_source import RankedSource
from tasuki.transfer.ranks.region import RankRegion, RankSpans
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.receiving.target_arena import ChunkSink, TargetArena
from tasuki.transfer.sending.chunk_source import ChunkSource, DirectSource
from tasuki.transfer.sending.link import SourceArena
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.transports.base import Transport
from tasuki.utils.system import shorten_lock_turns

from .failpoints import warn_if_armed
from .node_identity import NodeIdentity
from .settings import WireSettings


@dataclass(frozen=True)
class DataPlane:
    """One node's registered arena with its transport. Closing the transport ends it; it does not
    own the arena's memory."""

    transport: Transport
    digester: Digester
    chunk_source: ChunkSource
    chunk_sink: ChunkSink | None
    """None if arriving chunks need no decoding."""
    slabs: int
    """Number of slabs for a cache: all except the last ones kept back."""
    contract: Contract
    node: NodeIdentity
    arena: ArenaKey
    spans: RankSpans

    def source(self, steps: StepCounter) -> SourceArena:
        """Return the arena as a sender's. steps: counts the layers written into it, on every
        rank."""
        return SourceArena(
            self.slabs, self.transport, self.chunk_source, steps, self.arena, self.spans.ranks
        )

    def target(self) -> TargetArena:
        """Return the arena as a receiver's."""
        return TargetArena(
            *(self.slabs, self.transport, self.digester, self.chunk_sink, self.arena),
            spans=self.spans,
        )

    @staticmethod
    def of_ranks(
        region: RankRegion,
        spans: RankSpans,
        weights_digest: str,
        transport: Transport,
        kind: str,
        name: str,
        constants: str = NOT_USED,
        weights_format: str = NOT_USED,
    ) -> "DataPlane":
        """Make a data plane of the memory with the arenas of several ranks, as over() does; the
        wire is exact. Raises TransportError; ValueError if heads are no whole words."""
        warn_if_armed()
        region.register(transport)
        digester = region.digester()
        return DataPlane(
            transport,
            digester,
            RankedSource(spans, spans, digester),
            None,
            spans.slabs,
            Contract(
                weights_digest,
                spans.layout,
                tensor_parallel=spans.ranks,
                nixl=transport.libraries.get("nixl", NOT_USED),
                ucx=transport.libraries.get("ucx", NOT_USED),
                constants=constants,
                weights_format=weights_format,
            ),
            NodeIdentity.new(name, kind, transport.metadata(), spans.slabs, ranks=spans.ranks),
            ONLY_ARENA,
            spans,
        )

    @staticmethod
    def over(
        memory: torch.Tensor,
        layout: CacheLayout,
        weights_digest: str,
        transport: Transport,
        kind: str,
        name: str,
        wire: WireSettings | None = None,
        arena: ArenaKey = ONLY_ARENA,
        constants: str = NOT_USED,
        weights_format: str = NOT_USED,
    ) -> "DataPlane":
        """Make a data plane of one arena.

        memory: the arena's bytes, uint8 [slabs * slab_bytes] on any device; only they are
        registered here. wire: exact by default. arena: its key in the node; by default the only
        one. constants, weights_format: the model's and its weights', for the contract. Raises
        TransportError, WireError.
        """
        warn_if_armed()
        wire = wire or WireSettings()
        units = WireUnits.of(layout, wire.precision)
        slabs = memory.nbytes // layout.slab_bytes
        slabs -= slabs_kept_back(wire, units, slabs)
        transport.register(memory.data_ptr(), memory.nbytes, TransferUnits.of(layout))
        digester = build_digester(memory, layout, units)
        code = wire.precision.code
        chunk_source: ChunkSource = DirectSource(layout, digester)
        chunk_sink = None
        if not wire.precision.exact:
            first = slabs * layout.slab_bytes
            cells = StagingBuffer(first, memory.nbytes - first, units.largest_encoded)
            codec = _layer_codec(memory, units)
            chunk_source = EncodingSource(units, code, codec, digester, cells)
            chunk_sink = ChunkSink(units, code, codec)
        return DataPlane(
            transport,
            digester,
            chunk_source,
            chunk_sink,
            slabs,
            Contract(
                weights_digest,
                layout,
                wire_kv=wire.precision.kv.value,
                wire_state=wire.precision.state.value,
                nixl=transport.libraries.get("nixl", NOT_USED),
                ucx=transport.libraries.get("ucx", NOT_USED),
                constants=constants,
                weights_format=weights_format,
            ),
            NodeIdentity.new(name, kind, transport.metadata(), slabs, arena),
            arena,
            RankSpans(layout, 1, slabs),
        )


def build_digester(memory: torch.Tensor, layout: CacheLayout, units: WireUnits) -> Digester:
    """Return the digester of the arena's bytes on the wire."""
    if memory.device.type == "cpu":
        return ChunkDigester(memory.numpy(), layout, units)
    from tasuki.transfer.chunks.digest_kernel import GpuChunkDigester

    return GpuChunkDigester(memory, layout, units)


def _layer_codec(memory: torch.Tensor, units: WireUnits) -> LayerCodec:
    """Return the layer codec of an arena. memory: its bytes, uint8 [slabs * slab_bytes] on any
    device."""
    if memory.device.type == "cpu":
        return TorchLayerCodec(memory, units)
    from tasuki.transfer.precision.row_codec_kernel import GpuLayerCodec

    return GpuLayerCodec(memory, units)


@dataclass(frozen=True)
class TransferEngine:
    sender: Sender
    receiver: Receiver

    @classmethod
    def over(
        cls,
        plane: DataPlane,
        steps: StepCounter,
        layers_per_window: int | None,
        lease_seconds: float,
    ) -> "TransferEngine":
        """Make both ends. steps: counter awaited by the sender's chunks. The rest as in
        SenderSettings."""
        layout = plane.contract.layout
        settings = SenderSettings(layers_per_window=layers_per_window, lease_seconds=lease_seconds)
        return cls(
            Sender(layout, [plane.source(steps)], settings),
            Receiver(layout, [plane.target()]),
        )

    def start(self) -> None:
        """Start receiver and sender. Shorten the turns of this process's threads with the
        interpreter's lock."""
        shorten_lock_turns()
        self.receiver.start()
        self.sender.start()

    def stop(self) -> None:
        """Stop the sender first: no posted write may outlive this node's memory."""
        self.sender.stop()
        self.receiver.stop()
