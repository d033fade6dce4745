"""Hand-overs between nodes with unequal numbers of ranks: each rank of the receiver has its heads'
bytes, or the transfer is not verified."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from tasuki.model.families.qwen3_5.published import PUBLISHED
from tasuki.model.layer_kind import LayerKind
from tasuki.pycache import parts as cuts
from tasuki.pycache.arena import Arena, torch_dtype
from tasuki.pycache.layout import ArenaKey, CacheLayout, PlacedPart
from tasuki.pycache.parts import FP8_ROWS, Cut, Heads, Segments, share
from tasuki.transfer.chunks.chunk import Destination, FinishedLayers, StepCounter
from tasuki.transfer.chunks.digest import ArenaChunk
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.errors import ChunksMissing, DigestMismatch, TransferError, TransportError
from tasuki.transfer.ranks.head_rows import BY_HEADS, HeadRows
from tasuki.transfer.ranks.region import HostRegion, RankSpans
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import TransferBroke, TransferSent
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.transports.loopback import (
    Fault,
    Faults,
    LoopbackFabric,
    LoopbackTransport,
    no_faults,
)
from tests.harness.loopback_pair import Ends, random_ids
from tests.harness.model_shapes import DENSE
from tests.harness.other_layouts import OTHERS
from tests.harness.qwen35 import published_or_folder
from tests.harness.waiting import HANG_SECONDS

TRANSFER_ID, GENERATION, PAGES, SLABS = 5, 2, 7, 12
GDN, FULL, DRAFT = LayerKind.GDN, LayerKind.FULL, LayerKind.DRAFT
KINDS = (GDN, FULL, GDN, FULL, DRAFT)
KEYS, VALUES, HEADS = 4, 8, 2
SHAPE = replace(
    DENSE,
    **{"layer_kinds": KINDS[:-1], "draft_layers": 1, "kv_heads": HEADS, "head_dim": 8},
    **{"key_heads": KEYS, "value_heads": VALUES, "value_dim": 16, "key_dim": 16, "hidden": 24},
)
LAYOUT, FP8 = (SHAPE.cache_layout(dtype, "bfloat16", "float32") for dtype in ("bfloat16", FP8_ROWS))
Whole = dict[tuple[int, str], torch.Tensor]
"""Data of the whole model: (layer, name of the part) to [pages or 1, *stored tensor]."""


def placed_parts(layout: CacheLayout) -> Iterator[tuple[PlacedPart, int]]:
    """Yield each part of a layout, and the number of its tensors in a prompt: its pages, or 1."""
    for region in layout.regions:
        for part in region.parts:
            yield part, PAGES
    for column in layout.columns:
        yield column, 1


def whole_model(seed: int, layout: CacheLayout = LAYOUT) -> Whole:
    generator = torch.Generator().manual_seed(seed)
    return {
        (placed.layer, placed.name): torch.randn(count, *placed.shape, generator=generator)
        .mul(100)
        .to(torch_dtype(placed.dtype))
        for placed, count in placed_parts(layout)
    }


def of_rank(tensor: torch.Tensor, cut: Cut, ranks: int, rank: int) -> torch.Tensor:
    """Return the rank's share of a part's tensor, by the rule of shares alone."""
    match cut:
        case cuts.Whole():
            return tensor
        case Heads(count):
            runs: tuple[tuple[int, int], ...] = ((count, len(tensor) // count),)
        case Segments(heads):
            runs = heads
    segments = tensor.split([count * rows for count, rows in runs])
    found = []
    for segment, (count, rows) in zip(segments, runs, strict=True):
        own = share(count, ranks, rank)
        found.append(segment[own.start * rows : own.stop * rows])
    return torch.cat(found)


@dataclass
class RankedNode:
    """A node's memory, and each rank's arena in it."""

    ranks: int
    transport: LoopbackTransport
    layout: CacheLayout = LAYOUT
    steps: StepCounter = field(default_factory=StepCounter)

    def __post_init__(self) -> None:
        self.spans = RankSpans(self.layout, self.ranks, SLABS)
        self.memory = torch.full((self.spans.region_bytes,), 0xA5, dtype=torch.uint8)
        size = self.spans.arena_bytes
        self.arenas = [
            Arena(
                self.spans.part,
                SLABS,
                key=ArenaKey(rank=rank, ranks=self.ranks),
                memory=self.memory[self.spans.base(rank) : self.spans.base(rank) + size],
            )
            for rank in range(self.ranks)
        ]
        if self.ranks == 1:
            self.plane = DataPlane.over(
                self.memory, self.layout, "w", self.transport, "loopback", "n"
            )
        else:
            self.plane = DataPlane.of_ranks(
                HostRegion(self.memory, self.layout),
                *(self.spans, "w", self.transport, "loopback", "n"),
            )

    def tensors(
        self, whole: Whole, rank: int, pages: tuple[int, ...], slot: int, held: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
        """Yield (view of the rank's arena, its share of the whole model, the part's name). pages:
        those of a prompt behind the first `held`."""
        for placed, _ in placed_parts(self.layout):
            view, data = (
                self.arenas[rank].view(placed.layer, placed.name),
                whole[placed.layer, placed.name],
            )
            paged = placed.part in self.layout.layers[placed.layer].page
            for number, place in enumerate(pages if paged else (slot,)):
                found = data[number + held] if paged else data[0]
                yield view[place], of_rank(found, placed.part.cut, self.ranks, rank), placed.name

    def fill(self, whole: Whole, pages: tuple[int, ...], slot: int) -> None:
        for rank in range(self.ranks):
            for view, own, _ in self.tensors(whole, rank, pages, slot):
                view.copy_(own)

    def assert_has(self, whole: Whole, pages: tuple[int, ...], slot: int, held: int = 0) -> None:
        for rank in range(self.ranks):
            for view, own, name in self.tensors(whole, rank, pages, slot, held):
                assert torch.equal(view, own), (rank, name)


@dataclass
class RankedPair:
    source: RankedNode
    target: RankedNode
    sender: Sender
    receiver: Receiver
    ends: Ends = field(default_factory=Ends)
    pages: tuple[int, ...] = ()
    slot: int = 0
    granted: Destination = field(default_factory=lambda: Destination(0, (), None))

    def hand_over(self, whole: Whole, held: int = 0) -> None:
        """Hand all of it over in two forwards. held: pages that the receiver has."""
        generator = np.random.default_rng(1)
        self.pages, self.slot = random_ids(self.source.spans.part, SLABS, PAGES, generator)
        theirs, slot = random_ids(self.target.spans.part, SLABS, PAGES - held, generator)
        self.granted = Destination(held, theirs, slot)
        self.source.fill(whole, self.pages, self.slot)
        self.receiver.expect(TRANSFER_ID, GENERATION, self.granted)
        self.sender.open(TRANSFER_ID, GENERATION, "peer", self.granted, self.ends)
        for first, end in ((0, 4), (4, PAGES)):
            state = self.slot if end == PAGES else None
            plan = FinishedLayers(self.source.steps.value, first, self.pages[first:end], state)
            self.sender.plan_forward(TRANSFER_ID, plan)
            for _ in self.source.layout.layers:
                self.source.steps.tick()

    def changed(self) -> int:
        """Return the number of layer chunks with another digest at the target than was sent."""
        end, target = self.ends.wait(TRANSFER_ID), self.target.plane.target()
        assert isinstance(end, TransferSent), end
        code = 0 if self.source.ranks == self.target.ranks == 1 else BY_HEADS
        found = 0
        for chunk in end.report.digests:
            header = chunk.header
            first = header.first_page - self.granted.first_page
            pages = self.granted.pages[first : first + header.pages]
            state = self.granted.slot if header.carries_state else None
            placed = ArenaChunk(TRANSFER_ID, GENERATION, header, pages, state)
            (own,) = target.digester.digest_each([target.digestible(placed, code)])
            found += own != chunk.digest
        return found

    def verify(self) -> None:
        end = self.ends.wait(TRANSFER_ID)
        assert isinstance(end, TransferSent), end
        self.receiver.verify(TRANSFER_ID, GENERATION, end.report.digests, HANG_SECONDS)


@contextmanager
def ranked_pair(
    senders: int, receivers: int, faults: Faults = no_faults, layout: CacheLayout = LAYOUT
) -> Iterator[RankedPair]:
    fabric = LoopbackFabric()
    source = RankedNode(senders, LoopbackTransport(fabric, "source", faults), layout)
    target = RankedNode(receivers, LoopbackTransport(fabric, "target"), layout)
    # The lease is long, because it is never renewed.
    settings = SenderSettings(lease_seconds=HANG_SECONDS)
    sender = Sender(layout, [source.plane.source(source.steps)], settings)
    receiver = Receiver(layout, [target.plane.target()])
    sender.connect("peer", target.plane.node.arenas)
    receiver.start()
    sender.start()
    try:
        yield RankedPair(source, target, sender, receiver)
    finally:
        fabric.let_go()
        sender.stop()
        receiver.stop()


@pytest.mark.parametrize(("senders", "receivers"), [(1, 1), (1, 2), (2, 1), (4, 2), (2, 4)])
@pytest.mark.parametrize("name", OTHERS)
def test_every_part_of_another_family_arrives(senders: int, receivers: int, name: str) -> None:
    layout = OTHERS[name]
    with ranked_pair(senders, receivers, layout=layout) as pair:
        whole = whole_model(senders, layout)
        pair.hand_over(whole, 3)
        pair.verify()
        assert pair.granted.slot is not None
        pair.target.assert_has(whole, pair.granted.pages, pair.granted.slot, 3)


@pytest.mark.parametrize(("senders", "receivers"), [(1, 1), (1, 2), (2, 1)])
def test_every_bit_of_a_whole_part_is_in_the_digest(senders: int, receivers: int) -> None:
    """Also on the last rank, which has it from another's copy."""
    for name, layout in OTHERS.items():
        parts = [placed for placed, _ in placed_parts(layout)]
        for placed in (p for p in parts if p.part.cut == cuts.Whole()):
            with ranked_pair(senders, receivers, layout=layout) as pair:
                pair.hand_over(whole_model(1, layout))
                pair.verify()
                assert pair.changed() == 0 and pair.granted.slot is not None
                paged = placed.part in layout.layers[placed.layer].page
                view = pair.target.arenas[-1].view(placed.layer, placed.name)
                row = view[pair.granted.pages[-1] if paged else pair.granted.slot]
                row.view(torch.uint8).view(-1)[-1] ^= 1
                assert pair.changed() == 1, (name, placed.name)


SIZES = [(senders, receivers) for senders in (1, 2, 4) for receivers in (1, 2, 4)]


@pytest.mark.parametrize(("senders", "receivers"), SIZES)
@pytest.mark.parametrize(
    ("held", "layout"), [(0, LAYOUT), (3, LAYOUT), (3, FP8)], ids=["all", "rest", "rest in fp8"]
)
def test_every_rank_has_its_heads(
    senders: int, receivers: int, held: int, layout: CacheLayout
) -> None:
    whole = whole_model(senders, layout)
    with ranked_pair(senders, receivers, layout=layout) as pair:
        pair.hand_over(whole, held)
        pair.verify()
        assert pair.granted.slot is not None
        # Pages already held by the receiver stay there.
        pair.target.assert_has(whole, pair.granted.pages, pair.granted.slot, held)


@pytest.mark.parametrize(("senders", "receivers"), [(2, 1), (1, 2), (4, 2), (1, 4)])
@pytest.mark.parametrize("post", [1, 4, 5, 9])
def test_a_bit_that_lands_wrong_is_noticed(senders: int, receivers: int, post: int) -> None:
    def flip(index: int) -> Fault:
        return Fault.FLIP_BIT if index == post else Fault.NONE

    with ranked_pair(senders, receivers, flip) as pair:
        pair.hand_over(whole_model(1))
        with pytest.raises(DigestMismatch):
            pair.verify()


@pytest.mark.parametrize(("senders", "receivers"), [(2, 1), (1, 4), (4, 4)])
def test_a_window_that_is_lost_is_missing(senders: int, receivers: int) -> None:
    def lose(index: int) -> Fault:
        return Fault.LOSE if index == 6 else Fault.NONE

    with ranked_pair(senders, receivers, lose) as pair:
        pair.hand_over(whole_model(1))
        end = pair.ends.wait(TRANSFER_ID)
        assert isinstance(end, TransferSent)
        with pytest.raises(ChunksMissing):
            pair.receiver.verify(TRANSFER_ID, GENERATION, end.report.digests, 0.0)


def test_a_wire_that_breaks_ends_the_room() -> None:
    def stop_at(index: int) -> Fault:
        return Fault.BREAK if index == 2 else Fault.NONE

    with ranked_pair(2, 1, stop_at) as pair:
        pair.hand_over(whole_model(1))
        assert isinstance(pair.ends.wait(TRANSFER_ID), TransferBroke)


@pytest.mark.parametrize("wrong", ["source's head", "target's head", "copy", "neighbours"])
def test_right_bytes_of_a_wrong_head_are_noticed(wrong: str) -> None:
    """The arrived data is overwritten by the result of a wrong rule."""
    whole = whole_model(3)
    with ranked_pair(2, 4) as pair:
        pair.hand_over(whole)
        pair.verify()
        arenas, slot = pair.target.arenas, pair.granted.slot
        assert slot is not None
        page = pair.granted.pages[2]
        if wrong == "source's head":
            arenas[1].views("ssm")[0][slot, 0] = arenas[0].views("ssm")[0][slot, 0]
        elif wrong == "target's head":
            arenas[2].views("ssm")[1][slot] = arenas[2].views("ssm")[1][slot].flip(0)
        elif wrong == "copy":
            # Two ranks have the same head: each copy counts by itself.
            arenas[1].views("kv")[0][page] = 0
        else:
            conv = arenas[3].views("conv")[0][slot]
            conv[:16], conv[16:32] = conv[16:32].clone(), conv[:16].clone()
        assert pair.changed() == 1


def test_a_peer_of_ranks_that_cannot_be_or_that_has_less_memory_is_refused() -> None:
    with ranked_pair(2, 1) as pair:
        (address,) = pair.target.plane.node.arenas
        with pytest.raises(TransportError, match="3 ranks"):
            pair.sender.connect("three", [replace(address, ranks=3)])
        with pytest.raises(TransferError, match="registered"):
            pair.sender.connect("two", [replace(address, ranks=2, slabs=10 * SLABS)])


@pytest.mark.parametrize("name", PUBLISHED)
def test_heads_of_every_published_model_are_whole_words(name: str) -> None:
    config = published_or_folder(name)
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    (conv,) = {part for cache in layout.layers for part in cache.slot if part.name == "conv"}
    assert [count for count, _ in conv.runs] == [config.key_heads] * 2 + [config.value_heads]
    for ranks in (1, 2, 4, 8):
        HeadRows(RankSpans(layout, ranks, 4), ranks)
