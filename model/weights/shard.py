"""One tensor-parallel rank's part of a model: its run of pieces, and its slices of published
weights.

Pure. A family decides what is divided (RankCuts). Slices depend on the model's shape, the weight's
name and the rank alone. Some tensors hold several parts end to end, as [q | k | v] of a recurrent
layer. Each part is divided by itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tasuki.model.config import ModelConfig
from tasuki.model.config_json import ModelConfigError
from tasuki.pycache.parts import share

from .matrix import Part, WeightsError


class UnfitSize(ModelConfigError):
    """Error: a model cannot be divided among this number of ranks. The message lists the possible
    numbers."""

    @staticmethod
    def of(ranks: int, misfit: str, sizes: Sequence[int], by_expert: Sequence[int]) -> "UnfitSize":
        """Return the error. misfit: names the first size that does not fit. sizes: the possible
        numbers; by_expert: those with another division of the experts; empty: there is none."""
        also = ""
        if ranks in by_expert:
            also = f", or these with --expert-parallel: {', '.join(map(str, by_expert))}"
        return UnfitSize(
            f"the model cannot be shared out among {ranks} ranks: {misfit}; give "
            f"--tensor-parallel one of {', '.join(map(str, sizes))}{also}"
        )


class ExpertCut(Enum):
    """Division among ranks of the routed experts."""

    BY_WIDTH = "tensor"
    """Every rank has a part of each expert's inner width."""
    BY_EXPERT = "expert"
    """Every rank has some experts whole."""


@dataclass(frozen=True)
class Shard:
    """One tensor-parallel rank: number `rank` of `ranks` ranks, with its division of the
    experts."""

    rank: int
    ranks: int
    experts: ExpertCut = ExpertCut.BY_WIDTH

    def of(self, pieces: int) -> range:
        """Return this rank's range of `pieces` pieces, such as heads."""
        return share(pieces, self.ranks, self.rank)


@dataclass(frozen=True)
class Cut:
    """One rank's part of a tensor: the `spans` of dimension `dim`, end to end. size: number of
    elements in the whole dimension."""

    dim: int
    size: int
    spans: tuple[range, ...]

    @property
    def count(self) -> int:
        """Return the number of elements in this rank's part of the dimension."""
        return sum(map(len, self.spans))

    @property
    def parts(self) -> tuple[Part, ...]:
        before = (slice(None),) * self.dim
        return tuple((*before, slice(span.start, span.stop)) for span in self.spans)

    def whole(self, share: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the whole tensor, given the shape of the rank's part."""
        return (*share[: self.dim], self.size, *share[self.dim + 1 :])


class RankCuts(Protocol):
    """The division of one whole model among ranks, by its family."""

    def part(self, shard: Shard) -> ModelConfig:
        """Return the config of the rank's part of the model. Raises UnfitSize."""

    def fitting_sizes(self, experts: ExpertCut) -> list[int]:
        """Return the possible numbers of ranks, ascending."""

    def cut(self, shard: Shard, name: str) -> Cut | None:
        """Return the rank's part of a weight, by the weight's name; None: every rank has the whole
        weight. REQUIRES: is_elsewhere() is false for the name. Raises WeightsError for an unknown
        name."""

    def is_elsewhere(self, shard: Shard, name: str) -> bool:
        """Return true if the tensor belongs to another rank. Return false if each rank has a part
        of it."""


def cuts_vocabulary(config: ModelConfig, shard: Shard) -> bool:
    """Return true if each rank has a part of the model's head. Return false if each rank has the
    whole head."""
    return shard.ranks > 1 and config.vocab % (shard.ranks * config.head_block) == 0


def cut_segments(shard: Shard, dim: int, *segments: tuple[int, int]) -> Cut:
    """Return the rank's part of a tensor of several segments along `dim`. segments: (number of
    pieces, number of elements) of each segment."""
    spans, begin = [], 0
    for pieces, size in segments:
        each, own = size // pieces, shard.of(pieces)
        spans.append(range(begin + own.start * each, begin + own.stop * each))
        begin += size
    return Cut(dim, begin, tuple(spans))


EXPERT_NAME = re.compile(r"\.experts\.(?:(?:gate|up|down)_proj\.)?(\d+)\.")


def module_and_leaf(name: str) -> tuple[str, str]:
    """Return the name of the tensor's module, such as self_attn, and the weight's name in it."""
    plain = EXPERT_NAME.sub(lambda found: found[0].replace(f".{found[1]}.", "."), name)
    parts = plain.removesuffix(".weight").split(".")
    return parts[-2] if len(parts) > 1 else "", parts[-1]


def unknown_weight(name: str) -> Cut:
    raise WeightsError(
        f"tensor {name} is of no kind that can be shared out among ranks; give --tensor-parallel 1"
    )
