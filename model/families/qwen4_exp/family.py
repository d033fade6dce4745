"""The family of Qwen4-Exp, as the registry knows it."""

import torch

from tasuki.model.config_json import ConfigFile
from tasuki.model.costs import PrefillFlops, WeightSizes
from tasuki.model.families.family import Assembly, Family
from tasuki.model.weights.source import TensorSource
from tasuki.utils.logs import Progress, no_progress

from .assembly import Qwen4ExpAssembler
from .config import Qwen4ExpConfig
from .costs import prefill_flops, weight_sizes
from .cuts import Qwen4ExpCuts
from .reader import MODEL_TYPES, read_config
from .stack.model import Qwen4ExpModel
from .weights import ModelWeights


class Qwen4ExpFamily(Family[Qwen4ExpConfig, ModelWeights]):
    name = "Qwen4-Exp"
    model_types = MODEL_TYPES

    def read_config(self, file: ConfigFile) -> Qwen4ExpConfig:
        return read_config(file)

    def assemble(
        self,
        config: Qwen4ExpConfig,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        progress: Progress = no_progress,
    ) -> ModelWeights:
        return Qwen4ExpAssembler(config, source, dtype, device).whole(progress)

    def build(
        self, config: Qwen4ExpConfig, weights: ModelWeights, assembly: Assembly
    ) -> Qwen4ExpModel:
        return Qwen4ExpModel(config, weights, assembly)

    def cuts(self, config: Qwen4ExpConfig) -> Qwen4ExpCuts:
        return Qwen4ExpCuts(config)

    def prefill_flops(self, config: Qwen4ExpConfig) -> PrefillFlops:
        return prefill_flops(config)

    def weight_sizes(
        self, config: Qwen4ExpConfig, dtype: torch.dtype, source: TensorSource
    ) -> WeightSizes:
        return weight_sizes(config, dtype, source)
