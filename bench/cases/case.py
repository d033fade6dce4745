"""A case: one kernel at one size, its least memory traffic, and other implementations to compare.
Also holds the memory shared by the cases: one arena in a published model's shape, filled with
random values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from tasuki.bench.measure.floors import Floors
from tasuki.bench.measure.report import Row
from tasuki.bench.measure.timing import Work, median_seconds, turn_seconds
from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.registry import published_or_folder
from tasuki.pycache.arena import Arena
from tasuki.pycache.parts import FP8_ROWS

# Several times any GPU's L2 cache.
OVERFLOW_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Stage:
    """The memory used by the cases. The arena has the 9B model's shape; its attention heads suffice
    for the other published shapes. slabs: the arena's size in slabs. kv: format of the page
    content, a name of `CacheLayout`. states: dtype of recurrent states."""

    device: torch.device
    slabs: int
    kv: str = "bfloat16"
    states: str = "float32"

    @cached_property
    def model(self) -> DeltaNetConfig:
        return delta_net("9b")

    @cached_property
    def arena(self) -> Arena:
        layout = self.model.cache_layout(self.kv, "bfloat16", self.states)
        arena = Arena(layout, self.slabs, self.device)
        if self.kv == FP8_ROWS:
            # Codes and scales below the values for NaN.
            arena.bytes.random_(0, 126)
            return arena
        # bfloat16 pairs read as float32 are of the same size, so the states are random as well.
        arena.bytes.view(torch.bfloat16).normal_()
        return arena

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16)

    def ints(self, values: object) -> Tensor:
        return torch.tensor(values, device=self.device, dtype=torch.int32)

    def page_ids(self, count: int, first: int = 0) -> Tensor:
        """Return page ids, [count] int32, in the order the cache gives them to a request without
        others. first: pages skipped before."""
        layout = self.arena.layout
        ids = torch.arange(first, first + count, device=self.device)
        slab, page = ids // layout.pages_per_slab, ids % layout.pages_per_slab
        return (slab * layout.blocks_per_slab + page).int()

    def rows(self, count: int) -> Tensor:
        return self.ints([count])


def delta_net(name: str) -> DeltaNetConfig:
    """Return the config of a published model with the operators measured here."""
    found = published_or_folder(name)
    assert isinstance(found, DeltaNetConfig)
    return found


def turns_to_overflow(bytes_a_turn: float, most: int = 256) -> int:
    """Return the number of turns needed to evict the first turn's data from every hardware cache.
    Each turn uses separate memory. bytes_a_turn: bytes moved by a turn. most: upper limit of the
    result."""
    return max(1, min(most, -(-OVERFLOW_BYTES // int(bytes_a_turn))))


@dataclass(frozen=True)
class Case:
    """One kernel at one size. `turns`: calls doing the same work on different memory, enough to
    overflow the L2 cache.

    bytes: bytes read and written in one turn, each counted once. flops: operations of matrix
    products in one turn. captured: other implementations by name, timed as graph replays. eager:
    other implementations by name, timed as plain calls. share: the lowest accepted share of the
    floor. rate: the lowest accepted bytes a second. ratios: by an implementation's name, the lowest
    accepted ratio of its time to ours.
    """

    name: str
    turns: Sequence[Work]
    bytes: float
    flops: float = 0.0
    captured: Mapping[str, Sequence[Work]] = field(default_factory=dict)
    eager: Mapping[str, Work] = field(default_factory=dict)
    share: float | None = None
    rate: float | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)

    def floor(self, floors: Floors) -> float:
        return max(floors.of_bytes(self.bytes), floors.of_flops(self.flops))


def measure(case: Case, stage: Stage, floors: Floors) -> Row:
    seconds = turn_seconds(case.turns, stage.device)
    others = {name: turn_seconds(turns, stage.device) for name, turns in case.captured.items()}
    others |= {name: median_seconds(work, stage.device) for name, work in case.eager.items()}
    floor = case.floor(floors)
    asked = []
    if case.share is not None:
        asked.append((f">= {case.share:.0%} of the floor", floor / seconds >= case.share))
    if case.rate is not None:
        asked.append((f">= {case.rate / 1e12:g} TB/s", case.bytes / seconds >= case.rate))
    for name, ratio in case.ratios.items():
        if name in others:
            asked.append((f">= {ratio:g}x {name}", others[name] / seconds >= ratio))
    extra = {"TB/s": case.bytes / seconds / 1e12}
    if case.flops:
        extra["TFLOP/s"] = case.flops / seconds / 1e12
    return Row(case.name, seconds, floor, others=others, extra=extra).asked(*asked)


_SHARE = 0.85
_MOST_TURNS = 8

Turn = tuple[Work, tuple[Tensor, ...]]
"""A kernel call on memory of its own, and the input tensors of the reference implementation for the
same work."""


def beside_twin(
    name: str, turn: Callable[[], Turn], twin: Callable[..., object], moved: float
) -> Case:
    """Return a case comparing a kernel with its compiled reference implementation `twin`. turn:
    makes one kernel call. moved: bytes read and written by a turn."""
    turns = [turn() for _ in range(turns_to_overflow(moved, most=_MOST_TURNS))]
    # Compile it whole or not at all: a reference in parts would be easy to beat.
    fast = torch.compile(twin, dynamic=False, fullgraph=True)
    return Case(
        name,
        [work for work, _ in turns],
        bytes=moved,
        captured={"torch.compile": [partial(fast, *tensors) for _, tensors in turns]},
        share=_SHARE,
        ratios={"torch.compile": 1.0},
    )
