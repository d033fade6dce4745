"""Configs and weights of the Qwen3.5 family with their own types, for tests of its parts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import ConfigFile
from tasuki.model.families import loading, registry
from tasuki.model.families.qwen3_5.reader import read_config
from tasuki.model.families.qwen3_5.weights import ModelWeights
from tasuki.model.weights.shard import Shard


def load_config(directory: Path | str) -> DeltaNetConfig:
    """Return the shape of the model in a checkpoint folder."""
    return read_config(ConfigFile.load(directory))


def config_of(
    raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, source: str = "config"
) -> DeltaNetConfig:
    """Return the shape described by the contents of config.json and generation_config.json."""
    return read_config(ConfigFile.of(raw, generation, source))


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
