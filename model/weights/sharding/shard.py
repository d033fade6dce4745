"""Which part of a model a rank computes, and how large its own heads and widths are.

Pure. Attention is cut by heads, a GDN layer by key heads with the value heads that belong to them,
a feed-forward by its inner width, the head of the model by vocabulary.
"""

from dataclasses import dataclass, replace
from enum import Enum

from tasuki.model.config import DenseShape, ModelConfig, MoeShape
from tasuki.model.config_fields import ModelConfigError
from tasuki.pycache.shares import share


class UnfitSize(ModelConfigError):
    """A model cannot be shared out among so many ranks; the message names numbers that do."""


class ExpertCut(Enum):
    """How routed experts are shared out."""

    BY_WIDTH = "tensor"
    """A part of each expert's inner width on every rank."""
    BY_EXPERT = "expert"
    """Whole experts, each on one rank."""


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `ranks`."""

    rank: int
    ranks: int
    experts: ExpertCut = ExpertCut.BY_WIDTH

    def of(self, pieces: int) -> range:
        """Which of so many pieces it has."""
        return share(pieces, self.ranks, self.rank)

    def part(self, config: ModelConfig) -> ModelConfig:
        """The model with this rank's heads and widths. Raises UnfitSize."""
        check_fits(config, self)
        vocabulary = self.of(config.vocab) if cuts_vocabulary(config, self) else None
        return replace(
            config,
            query_heads=len(self.of(config.query_heads)),
            kv_heads=len(self.of(config.kv_heads)),
            key_heads=len(self.of(config.key_heads)),
            value_heads=len(self.of(config.value_heads)),
            feed_forward=self._feed_forward(config.feed_forward),
            head_rows=vocabulary,
        )

    def _feed_forward(self, shape: DenseShape | MoeShape) -> DenseShape | MoeShape:
        if isinstance(shape, DenseShape):
            return DenseShape(len(self.of(shape.intermediate)))
        shared = len(self.of(shape.shared_intermediate))
        if self.experts is ExpertCut.BY_EXPERT:
            return replace(shape, shared_intermediate=shared, held=self.of(shape.experts))
        width = len(self.of(shape.intermediate))
        return replace(shape, intermediate=width, shared_intermediate=shared)


def cuts_vocabulary(config: ModelConfig, shard: Shard) -> bool:
    """Whether each rank has a part of the model's head; else all of it."""
    return shard.ranks > 1 and config.vocab % (shard.ranks * config.head_block) == 0


def fitting_sizes(config: ModelConfig, experts: ExpertCut) -> list[int]:
    """Numbers of ranks that the model can be shared out among, ascending."""
    return [
        ranks
        for ranks in range(1, config.query_heads + 1)
        if _misfit(config, Shard(0, ranks, experts)) is None
    ]


def check_fits(config: ModelConfig, shard: Shard) -> None:
    """Raises UnfitSize."""
    if shard.experts is ExpertCut.BY_EXPERT and isinstance(config.feed_forward, DenseShape):
        raise UnfitSize(
            "the model has no experts to share out: leave --expert-parallel out, and it is cut as "
            "every dense model is"
        )
    misfit = _misfit(config, shard)
    if misfit is None:
        return
    sizes = fitting_sizes(config, shard.experts)
    also = ""
    if shard.experts is ExpertCut.BY_WIDTH and isinstance(config.feed_forward, MoeShape):
        more = fitting_sizes(config, ExpertCut.BY_EXPERT)
        if shard.ranks in more:
            also = f", or these with --expert-parallel: {_listed(more)}"
    raise UnfitSize(
        f"the model cannot be shared out among {shard.ranks} ranks: {misfit}; give "
        f"--tensor-parallel one of {_listed(sizes)}{also}"
    )


def _misfit(config: ModelConfig, shard: Shard) -> str | None:
    """What does not divide, in words."""
    ranks, shape = shard.ranks, config.feed_forward
    counts = {"query heads": config.query_heads, "key heads of GDN layers": config.key_heads}
    if isinstance(shape, DenseShape):
        counts["columns of the feed-forward"] = shape.intermediate
    else:
        counts["columns of the shared expert"] = shape.shared_intermediate
        if shard.experts is ExpertCut.BY_EXPERT:
            counts["experts"] = shape.experts
        else:
            counts["columns of an expert"] = shape.intermediate
    for name, count in counts.items():
        if count % ranks:
            return f"it has {count} {name}"
    if config.kv_heads % ranks and ranks % config.kv_heads:
        return f"it has {config.kv_heads} heads of keys and values"
    return None


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))
