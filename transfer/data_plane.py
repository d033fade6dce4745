"""One node's access to transfers: its registered arena, its sender and its receiver.

`DataPlane`: the registered arena, its digester, the source and the decoder of its layer chunks, its
contract and its identity. If chunks are sent encoded, the arena's last slabs (fixed-size parts) are
kept back for encoded chunks to be sent.

`TransferEngine`: a node's sender of bytes from its arena and its receiver of bytes into it. Owns
both, over one borrowed data plane. Knows no role: the node decides if it sends hand-overs and
receives pulls, or the reverse. Thread rule: start and stop block, once each, on any thread allowed
to wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from tasuki.pycache.layout import ONLY_ARENA, ArenaKey, CacheLayout
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.chunks.descriptors import TransferUnits
from tasuki.transfer.chunks.digest import ChunkDigester, Digester
from tasuki.transfer.precision.encoding_source import EncodingSource, StagingBuffer, slabs_kept_back
from tasuki.transfer.precision.layer_codec import LayerCodec, TorchLayerCodec
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.protocol.contract import BF16_NAME, NOT_USED, Contract
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
    """One node's registered arena with its transport. Closing the transport ends the registration.
    The arena's memory belongs to the caller."""

    transport: Transport
    digester: Digester
    chunk_source: ChunkSource
    chunk_sink: ChunkSink | None
    """Decoder of arriving layer chunks; None if they need no decoding."""
    slabs: int
    """Number of slabs (parts of the arena) for a cache, without those for encoded chunks."""
    contract: Contract
    node: NodeIdentity
    arena: ArenaKey
    spans: RankSpans

    def source(self, steps: StepCounter) -> SourceArena:
        """Return this arena as a `SourceArena`, for a sender of bytes from it. steps: counter of
        the layers written into the arena on every rank."""
        return SourceArena(
            self.slabs, self.transport, self.chunk_source, steps, self.arena, self.spans.ranks
        )

    def target(self) -> TargetArena:
        """Return this arena as a `TargetArena`, for a receiver of bytes into it."""
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
        step_activations: str = BF16_NAME,
        pictures: Mapping[str, str] = MappingProxyType({}),
        tensors_digest: str = NOT_USED,
    ) -> "DataPlane":
        """Make a data plane of a memory region with the arenas of several ranks, otherwise like
        over(). KV and state are sent exact. Raises TransportError; ValueError if a head's bytes are
        no whole 64-bit words."""
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
                step_activations=step_activations,
                pictures=pictures,
                tensors_digest=tensors_digest,
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
        step_activations: str = BF16_NAME,
        pictures: Mapping[str, str] = MappingProxyType({}),
        tensors_digest: str = NOT_USED,
    ) -> "DataPlane":
        """Make a data plane of one arena.

        memory: the arena's bytes, uint8 [slabs * slab_bytes] on any device; only they are
        registered here. wire: precision of sent KV and state; None: exact. arena: key of this arena
        in the node; by default the only one. constants, weights_format, step_activations: values of
        the model, of its weights and of its products, for the contract, as is tensors_digest.
        pictures: its fields for pictures. Raises TransportError, WireError.
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
                step_activations=step_activations,
                pictures=pictures,
                tensors_digest=tensors_digest,
            ),
            NodeIdentity.new(name, kind, transport.metadata(), slabs, arena),
            arena,
            RankSpans(layout, 1, slabs),
        )


def build_digester(memory: torch.Tensor, layout: CacheLayout, units: WireUnits) -> Digester:
    """Return the digester of an arena. units: lengths on the wire; only sent parts are digested."""
    if memory.device.type == "cpu":
        return ChunkDigester(memory.numpy(), layout, units)
    from tasuki.transfer.chunks.digest_kernel import GpuChunkDigester

    return GpuChunkDigester(memory, layout, units)


def _layer_codec(memory: torch.Tensor, units: WireUnits) -> LayerCodec:
    """Return the encoder and decoder of an arena's layers. memory: the arena's bytes, uint8 [slabs
    * slab_bytes] on any device."""
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
        """Make a node's sender and receiver. steps: counter of finished layers; a chunk waits for
        its layers there. layers_per_window, lease_seconds: fields of SenderSettings."""
        layout = plane.contract.layout
        settings = SenderSettings(layers_per_window=layers_per_window, lease_seconds=lease_seconds)
        return cls(
            Sender(layout, [plane.source(steps)], settings), Receiver(layout, [plane.target()])
        )

    def start(self) -> None:
        """Start receiver and sender. Also shorten the time for which a thread of this process keeps
        the interpreter's lock."""
        shorten_lock_turns()
        self.receiver.start()
        self.sender.start()

    def stop(self) -> None:
        """Stop the sender, then the receiver. No posted write may outlive this node's memory."""
        self.sender.stop()
        self.receiver.stop()
