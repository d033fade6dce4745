"""An engine of several ranks over random weights, of which each draws its own slices."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.assembly.ranks import RankSource, build_leader_parts
from tasuki.engine.config import EngineConfig, Role
from tasuki.model.config import ModelConfig
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.known_models import published_or_folder
from tasuki.model.weights.layers import ModelWeights, assemble
from tasuki.model.weights.shard import Shard
from tasuki.model.weights.source import RandomSource, ShardedSource
from tasuki.utils.logs import Progress

from .report import Row
from .rig import SEED, Rig, made_up_vocabulary


def published(config: EngineConfig) -> ModelConfig:
    """Raises ModelConfigError."""
    return replace(published_or_folder(config.model), draft_layers=int(config.drafts_by_layer))


def drawn_shard(
    config: EngineConfig,
    model: ModelConfig,
    shard: Shard,
    device: torch.device,
    progress: Progress,
) -> ModelWeights:
    """As LoadShard, of the same weights as drawn_weights()."""
    source = ShardedSource(RandomSource(SEED, device), model, shard)
    dtype = getattr(torch, config.compute_dtype)
    weights = assemble(shard.part(model), source, dtype, device, progress)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return weights


def _vocabulary(config: EngineConfig, model: ModelConfig) -> Vocabulary:
    return made_up_vocabulary(model.vocab)


def rank_parts(config: EngineConfig, role: Role = Role.FUSED) -> EngineParts:
    """Whose `ranks` the caller closes. Raises as build_leader_parts()."""
    return build_leader_parts(
        config, role=role, source=RankSource(published, drawn_shard, _vocabulary)
    )


@contextmanager
def rank_rig(config: EngineConfig) -> Iterator[tuple[Rig, ModelConfig]]:
    """A rig of several ranks, and what one of them computes; their processes end with the block.
    Raises as build_leader_parts()."""
    parts = rank_parts(config)
    assert parts.ranks is not None
    try:
        yield Rig(parts.model_config, config, parts), parts.model.config
        parts.ranks.check()
    finally:
        parts.ranks.close()


def beside_one_rank(row: Row, ranks: int, alone: float | None, least: float | None) -> Row:
    """The row, named after the ranks and without other targets. alone: seconds of one rank, if that
    was measured; least: how many times as fast several are to be, if that is judged."""
    name = f"{ranks} ranks: {row.name}"
    if alone is None:
        return replace(row, name=name, target="", met=None, others={})
    times = alone / row.seconds
    return replace(
        row,
        name=name,
        target="" if least is None else f">= {least:g}x one rank",
        met=None if least is None else times >= least,
        others={"one rank": alone},
        extra={"times one rank": times, **row.extra},
    )
