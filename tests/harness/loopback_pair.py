"""Two arenas with a loopback transport between them: a sender on one, a receiver on the other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from tasuki.model.layer_kind import LayerKind
from tasuki.pycache.arena import torch_dtype
from tasuki.pycache.layout import CacheLayout, Span
from tasuki.pycache.parts import LayerCache, Segments
from tasuki.transfer.chunks.chunk import Destination, FinishedLayers, StepCounter
from tasuki.transfer.chunks.descriptors import UnitSizes, layer_bytes
from tasuki.transfer.chunks.digest import ChunkDigester
from tasuki.transfer.node_identity import ArenaAddress
from tasuki.transfer.precision.encoding_source import EncodingSource, StagingBuffer
from tasuki.transfer.precision.layer_codec import TorchLayerCodec
from tasuki.transfer.precision.wire_layout import UnitForm, WireUnits
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.receiving.target_arena import ChunkSink, TargetArena
from tasuki.transfer.reports import TransferEnd, TransferSent
from tasuki.transfer.sending.chunk_source import ChunkSource, DirectSource
from tasuki.transfer.sending.link import SourceArena
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.settings import WirePrecision
from tasuki.transfer.transports.loopback import Faults, LoopbackFabric, LoopbackTransport, no_faults
from tests.harness.model_shapes import DENSE
from tests.harness.waiting import HANG_SECONDS

POISON = 0xA5
FULL, GDN, DRAFT = LayerKind.FULL, LayerKind.GDN, LayerKind.DRAFT
TRANSFER_ID, GENERATION = 7, 3


def small_layout(
    kinds: tuple[LayerKind, ...] = (GDN, GDN, GDN, FULL) * 2,
    channels: int = 24,
    kv_dtype: str = "float32",
    conv_dtype: str = "float32",
    ssm_dtype: str = "float32",
    **numbers: int,
) -> CacheLayout:
    """Return a layout of few bytes. channels: of the window. numbers: of DeltaNetConfig, in place
    of the small ones."""
    small = {"kv_heads": 1, "head_dim": 8, "value_heads": 2, "value_dim": 16, "key_dim": 16}
    small |= {"key_heads": 1, "hidden": 20, "draft_layers": kinds.count(DRAFT)} | numbers
    own = tuple(kind for kind in kinds if kind is not DRAFT)
    config = replace(DENSE, layer_kinds=own, **small)  # type: ignore[arg-type]
    layout = config.cache_layout(kv_dtype, conv_dtype, ssm_dtype)
    layers = {cache: _with_window(cache, channels) for cache in layout.layers}
    return replace(
        layout,
        layers=tuple(layers[cache] for cache in layout.layers),
        fields=tuple(
            replace(field, text=str(channels)) if field.name == "conv_channels" else field
            for field in layout.fields
        ),
    )


def _with_window(cache: LayerCache, channels: int) -> LayerCache:
    return replace(
        cache,
        slot=tuple(
            replace(part, shape=(channels, part.shape[1]), cut=Segments(((1, channels),)))
            if part.name == "conv"
            else part
            for part in cache.slot
        ),
    )


def sent_bytes(sizes: UnitSizes, pages: int, *, state: bool = True) -> int:
    """Return the bytes on the wire of pages, and of a state, in all layers."""
    return sum(layer_bytes(sizes, layer, pages, state) for layer in range(len(sizes.layers)))


@dataclass
class Node:
    """An arena of plain bytes, with its transport. Memory beyond `slabs` is not used by the
    arena."""

    layout: CacheLayout
    slabs: int
    transport: LoopbackTransport
    memory: NDArray[np.uint8]
    precision: WirePrecision = field(default_factory=WirePrecision)
    digester: ChunkDigester = field(init=False)
    chunk_source: ChunkSource = field(init=False)
    chunk_sink: ChunkSink | None = None

    def __post_init__(self) -> None:
        units = WireUnits.of(self.layout, self.precision)
        self.digester = ChunkDigester(self.memory, self.layout, units)
        self.chunk_source = DirectSource(self.layout, self.digester)
        if not self.precision.exact:
            codec = TorchLayerCodec(torch.from_numpy(self.memory), units)
            first = self.slabs * self.layout.slab_bytes
            cells = StagingBuffer(first, self.memory.size - first, units.largest_encoded)
            code = self.precision.code
            self.chunk_source = EncodingSource(units, code, codec, self.digester, cells)
            self.chunk_sink = ChunkSink(units, code, codec)
        self.transport.register(self.memory.ctypes.data, self.memory.size)

    def sender(self, steps: StepCounter, settings: SenderSettings | None) -> Sender:
        source = SourceArena(self.slabs, self.transport, self.chunk_source, steps)
        return Sender(self.layout, [source], settings)

    def receiver(self) -> Receiver:
        target = TargetArena(self.slabs, self.transport, self.digester, self.chunk_sink)
        return Receiver(self.layout, [target])

    @property
    def address(self) -> ArenaAddress:
        return ArenaAddress(self.transport.metadata(), self.slabs)

    def bytes_of(self, span: Span) -> bytes:
        return self.memory[span.offset : span.offset + span.length].tobytes()

    def page_bytes(self, page: int) -> bytes:
        layout = self.layout
        spans = [layout.page_span(region.layer, page) for region in layout.regions]
        return b"".join(map(self.bytes_of, spans))

    def slot_bytes(self, slot: int) -> bytes:
        layers = [i for i, cache in enumerate(self.layout.layers) if cache.slot]
        return b"".join(self.bytes_of(self.layout.state_span(layer, slot)) for layer in layers)


def through(form: UnitForm | None, held: bytes) -> bytes:
    """Return the bytes of a block or a state after a wire format's encoding and decoding. form: of
    its layer; None: unchanged."""
    if form is None:
        return held
    found = bytearray(held)
    at = 0
    for piece in form.pieces * form.runs:
        if piece.form is not None:
            dtype = torch_dtype(piece.part.dtype)
            end = at + piece.form.rows * piece.form.width * dtype.itemsize
            values = torch.frombuffer(found[at:end], dtype=dtype)
            rows = values.view(1, piece.form.rows, piece.form.width)
            decoded = piece.form.decode(piece.form.encode(rows), dtype)
            found[at:end] = decoded.flatten().view(torch.uint8).numpy().tobytes()
        at += piece.held
    return bytes(found)


def expected_page(units: WireUnits, node: Node, page: int) -> bytes:
    """Return the bytes of the node's page as a receiver has them after the wire format."""
    spans = [(r.layer, units.layout.page_span(r.layer, page)) for r in units.layout.regions]
    return b"".join(through(units.form(layer), node.bytes_of(span)) for layer, span in spans)


def expected_slot(units: WireUnits, node: Node, slot: int) -> bytes:
    parts = []
    for layer in (layer for layer, cache in enumerate(units.layers) if cache.slot):
        form = None if units.layers[layer].page else units.form(layer)
        parts.append(through(form, node.bytes_of(units.layout.state_span(layer, slot))))
    return b"".join(parts)


def cells_in_use(*nodes: Node) -> int:
    """Return the number of used staging cells of nodes with an inexact wire format."""
    sources = [node.chunk_source for node in nodes]
    assert all(isinstance(source, EncodingSource) for source in sources)
    return sum(source.cells.in_use for source in sources if isinstance(source, EncodingSource))


class Ends:
    """A collector of the on_end calls of transfers."""

    def __init__(self) -> None:
        self._ends: dict[int, TransferEnd] = {}
        self._changed = threading.Condition()

    def __call__(self, end: TransferEnd) -> None:
        with self._changed:
            assert end.transfer_id not in self._ends, "a room ended twice"
            self._ends[end.transfer_id] = end
            self._changed.notify_all()

    def over(self, transfer_id: int) -> bool:
        with self._changed:
            return transfer_id in self._ends

    def wait(self, transfer_id: int, timeout: float = HANG_SECONDS) -> TransferEnd:
        with self._changed:
            assert self._changed.wait_for(lambda: transfer_id in self._ends, timeout), "no end"
            return self._ends[transfer_id]


@dataclass(frozen=True)
class Opened:
    """A transfer opened at both ends. pages, slot: ids of the sender's source."""

    number: int
    granted: Destination
    pages: tuple[int, ...]
    slot: int


@dataclass
class Pair:
    source: Node
    target: Node
    fabric: LoopbackFabric
    sender: Sender
    receiver: Receiver
    steps: StepCounter
    ends: Ends
    back_sender: Sender
    """The sender of the return path (pulls): from the target's arena to the source's."""
    back_receiver: Receiver

    def layer_opens(self, transfer_id: int, layer: int, timeout: float) -> bool:
        """Return True if the transfer's barrier opens at the layer within `timeout` seconds,
        because the layer has arrived."""
        barrier = self.receiver.barrier(transfer_id)
        if barrier is None:
            return False
        closing = threading.Timer(timeout, barrier.close)
        closing.start()
        try:
            return barrier.wait(layer)
        finally:
            closing.cancel()

    def run(self, transfer_id: int, plans: list[Callable[[int], FinishedLayers]]) -> None:
        """Plan each forward of a transfer, and tick all its layers as computed."""
        for plan in plans:
            self.sender.plan_forward(transfer_id, plan(self.steps.value))
            self.tick()

    def tick(self, layers: int | None = None) -> None:
        """Mark `layers` layers as computed, by default all of a forward's."""
        for _ in range(layers or len(self.source.layout.layers)):
            self.steps.tick()

    def open(
        self,
        pages: int = 5,
        transfer_id: int = TRANSFER_ID,
        peer: str = "peer",
        held: int = 0,
        seed: int = 1,
    ) -> Opened:
        """Open a transfer of this many pages. held: number of its first pages already held by the
        receiver. The page ids and slots of both ends follow from the seed."""
        generator = np.random.default_rng(seed)
        layout, slabs = self.source.layout, self.source.slabs
        granted = destination(layout, slabs, pages - held, generator, held)
        local, slot = random_ids(layout, slabs, pages, generator)
        self.receiver.expect(transfer_id, GENERATION, granted)
        self.sender.open(transfer_id, GENERATION, peer, granted, self.ends)
        return Opened(transfer_id, granted, local, slot)

    def compute(self, opened: Opened, chunk: int = 2) -> None:
        self.run(opened.number, plans(opened.pages, opened.slot, chunk))

    def hand_over(self, pages: int = 5, chunk: int = 2) -> Opened:
        """Open a transfer and tick all its layers as computed; layer chunks may still be in flight.
        chunk: pages of a forward."""
        opened = self.open(pages)
        self.compute(opened, chunk)
        return opened

    def sent(self, transfer_id: int = TRANSFER_ID) -> TransferSent:
        end = self.ends.wait(transfer_id)
        assert isinstance(end, TransferSent), end
        return end

    def verified(
        self, transfer_id: int = TRANSFER_ID, timeout: float = HANG_SECONDS
    ) -> TransferSent:
        """Wait until the transfer is sent, and verify its digests at the receiver. Raises the
        errors of verification."""
        end = self.sent(transfer_id)
        self.receiver.verify(transfer_id, GENERATION, end.report.digests, timeout=timeout)
        return end

    def assert_arrived(self, opened: Opened) -> None:
        """Check pages and state at the target: they equal the source's, except for the wire
        format's rounding."""
        units = WireUnits.of(self.source.layout, self.source.precision)
        sent = opened.pages[opened.granted.first_page :]
        for ours, theirs in zip(opened.granted.pages, sent, strict=True):
            assert self.target.page_bytes(ours) == expected_page(units, self.source, theirs)
        state = expected_slot(units, self.source, opened.slot)
        assert self.target.slot_bytes(opened.granted.slot) == state


def plans(
    pages: tuple[int, ...], slot: int, chunk: int, first_page: int = 0
) -> list[Callable[[int], FinishedLayers]]:
    """Return plans of forwards of `chunk` pages each over the sender's own page ids. The last one
    includes the state."""
    made: list[Callable[[int], FinishedLayers]] = []
    starts = list(range(0, len(pages), chunk)) or [0]
    for start in starts:
        state = slot if start == starts[-1] else None
        part = pages[start : start + chunk]
        made.append(
            lambda tick, start=start, part=part, state=state: FinishedLayers(
                tick, first_page + start, part, state
            )
        )
    return made


@contextmanager
def loopback_pair(
    layout: CacheLayout | None = None,
    slabs: int = 8,
    faults: Faults = no_faults,
    settings: SenderSettings | None = None,
    seed: int = 0,
    back_faults: Faults = no_faults,
    precision: WirePrecision | None = None,
    kept_back: int = 0,
) -> Iterator[Pair]:
    """Yield the pair of arenas: the source full of random bytes, the target poisoned. "peer" is
    connected and renewed once. precision: wire format. With an inexact one the source has numbers
    of about 1, and both ends keep slabs beyond `slabs` back."""
    precision = precision or WirePrecision()
    settings = settings or SenderSettings(lease_seconds=HANG_SECONDS)
    layout = layout or small_layout()
    fabric = LoopbackFabric()
    generator = np.random.default_rng(seed)
    size = (slabs + kept_back) * layout.slab_bytes
    content = generator.integers(0, 256, size, dtype=np.uint8)
    if not precision.exact:
        content = generator.standard_normal(size // 4, dtype=np.float32).view(np.uint8)
    source = Node(layout, slabs, LoopbackTransport(fabric, "source", faults), content, precision)
    target = Node(
        layout,
        slabs,
        LoopbackTransport(fabric, "target", back_faults),
        np.full(size, POISON, dtype=np.uint8),
        precision,
    )
    steps = StepCounter()
    sender, receiver = source.sender(steps, settings), target.receiver()
    back_sender, back_receiver = target.sender(StepCounter(), settings), source.receiver()
    sender.connect("peer", [target.address])
    back_sender.connect("peer", [source.address])
    threads = (sender, receiver, back_sender, back_receiver)
    for thread in threads:
        thread.start()
    try:
        yield Pair(
            source, target, fabric, sender, receiver, steps, Ends(), back_sender, back_receiver
        )
    finally:
        fabric.let_go()
        for thread in threads:
            thread.stop()
        source.transport.close()
        target.transport.close()


def random_ids(
    layout: CacheLayout, slabs: int, pages: int, generator: np.random.Generator
) -> tuple[tuple[int, ...], int]:
    """Return page ids and a slot id. The slot is in one slab; the pages are scattered over the
    others."""
    order = generator.permutation(slabs).tolist()
    ids = [
        slab * layout.blocks_per_slab + k
        for slab in order[1:]
        for k in range(layout.pages_per_slab)
    ]
    assert pages <= len(ids)
    chosen = generator.permutation(len(ids))[:pages].tolist()
    return tuple(ids[i] for i in chosen), order[0]


def destination(
    layout: CacheLayout, slabs: int, pages: int, generator: np.random.Generator, first: int = 0
) -> Destination:
    ids, slot = random_ids(layout, slabs, pages, generator)
    return Destination(first, ids, slot)
