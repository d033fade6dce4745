"""The family of Qwen3-Next (80B-A3B, Coder-Next), as the registry knows it."""

from collections.abc import Mapping
from typing import Any

import torch

from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import ConfigFile
from tasuki.model.families.qwen3_5.family import Qwen35Family
from tasuki.model.families.qwen3_5.weights import ModelWeights
from tasuki.model.vision.config import VisionConfig
from tasuki.model.weights.source import TensorSource
from tasuki.utils.logs import Progress, no_progress

from .reader import MODEL_TYPES, PUBLISHED, read_config, short_name
from .weights import Qwen3NextCuts, assemble


class Qwen3NextFamily(Qwen35Family):
    """It computes what Qwen3.5's models with experts compute, with the same kernels."""

    name = "Qwen3-Next"
    model_types = MODEL_TYPES

    def read_config(self, file: ConfigFile) -> DeltaNetConfig:
        return read_config(file)

    def assemble(
        self,
        config: DeltaNetConfig,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        progress: Progress = no_progress,
    ) -> ModelWeights:
        return assemble(config, source, dtype, device, progress)

    def cuts(self, config: DeltaNetConfig) -> Qwen3NextCuts:
        return Qwen3NextCuts(config)

    def published(self, name: str) -> Mapping[str, Any] | None:
        return PUBLISHED.get(short_name(name))

    @property
    def published_names(self) -> tuple[str, ...]:
        return tuple(PUBLISHED)

    def published_tower(self, name: str) -> VisionConfig | None:
        return None
