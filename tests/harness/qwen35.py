"""Configs and weights of the Qwen3.5 family with their own types, for tests of its parts."""

from pathlib import Path

import torch

from tasuki.model.config import DeltaNetConfig
from tasuki.model.families import loading, registry
from tasuki.model.families.qwen3_5.weights import ModelWeights
from tasuki.model.weights.shard import Shard


def load_weights(
    folder: Path | str,
    config: DeltaNetConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    shard: Shard | None = None,
) -> ModelWeights:
    """Return the weights of a checkpoint folder; see loading.load_weights()."""
    weights = loading.load_weights(folder, config, dtype, device, shard=shard)
    assert isinstance(weights, ModelWeights)
    return weights


def published_or_folder(name: str) -> DeltaNetConfig:
    """Return the config of a published model or of a checkpoint folder."""
    config = registry.published_or_folder(name)
    assert isinstance(config, DeltaNetConfig)
    return config
