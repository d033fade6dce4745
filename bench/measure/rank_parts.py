"""An engine of several tensor-parallel ranks over random weights. Each rank generates its own
slices."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.assembly.ranks import RankSource, build_leader_parts
from tasuki.engine.config import EngineConfig, Role
from tasuki.model.config import ModelConfig
from tasuki.model.families.loading import assemble
from tasuki.model.families.registry import published_or_folder
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.weights.layers import Weights
from tasuki.model.weights.shard import Shard
from tasuki.model.weights.source import RandomSource
from tasuki.utils.logs import Progress

from .report import Row
from .rig import SEED, Rig, made_up_vocabulary


def published(config: EngineConfig) -> ModelConfig:
    """Return the config of a published model. Raises ModelConfigError."""
    return replace(published_or_folder(config.model), draft_layers=int(config.drafts_by_layer))


def drawn_shard(
    config: EngineConfig,
    model: ModelConfig,
    shard: Shard,
    device: torch.device,
    progress: Progress,
) -> Weights:
    """Return one rank's shard of the weights of drawn_weights(). Has the signature of LoadShard."""
    source, dtype = RandomSource(SEED, device), getattr(torch, config.compute_dtype)
    weights = assemble(model, source, dtype, device, progress, shard)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return weights


def _vocabulary(config: EngineConfig, model: ModelConfig) -> Vocabulary:
    return made_up_vocabulary(model.vocab)


def rank_parts(config: EngineConfig, role: Role = Role.FUSED) -> EngineParts:
    """Build the engine parts of several ranks. The caller closes their `ranks`. Raises the errors
    of build_leader_parts()."""
    return build_leader_parts(
        config, role=role, source=RankSource(published, drawn_shard, _vocabulary)
    )


@contextmanager
def rank_rig(config: EngineConfig) -> Iterator[tuple[Rig, ModelConfig]]:
    """Yield a rig (an engine stepped by the bench) of several ranks, and one rank's model config.
    The rank processes end with the block. Raises the errors of build_leader_parts()."""
    parts = rank_parts(config)
    assert parts.ranks is not None
    try:
        yield Rig(parts.model_config, config, parts), parts.model.config
        parts.ranks.check()
    finally:
        parts.ranks.close()


def beside_one_rank(row: Row, ranks: int, alone: float | None, least: float | None) -> Row:
    """Return the row with the number of ranks in its name, without other targets. alone: seconds of
    the same work on one rank; None: not measured. least: required speedup over one rank; None: not
    judged."""
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
