"""The family of Kimi Linear, as the registry knows it. It runs on CPUs only."""

import torch

from tasuki.model.config_json import ConfigFile
from tasuki.model.costs import PrefillFlops, WeightSizes
from tasuki.model.families.family import Assembly, Family
from tasuki.model.weights.source import TensorSource
from tasuki.utils.logs import Progress, no_progress

from .config import KimiConfig
from .costs import prefill_flops, weight_sizes
from .cuts import KimiCuts
from .model import KimiModel
from .operators import KimiBackend
from .reader import read_config
from .weights import KimiWeights, assemble


class KimiLinearFamily(Family[KimiConfig, KimiWeights]):
    name = "Kimi Linear"
    model_types = frozenset({"kimi_linear"})
    call_token = "<|tool_calls_section_begin|>"

    def read_config(self, file: ConfigFile) -> KimiConfig:
        return read_config(file)

    def assemble(
        self,
        config: KimiConfig,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        progress: Progress = no_progress,
    ) -> KimiWeights:
        return assemble(config, source, dtype, device, progress)

    def build(self, config: KimiConfig, weights: KimiWeights, assembly: Assembly) -> KimiModel:
        self.check_device(weights.device)
        backend = KimiBackend(config, assembly.reduce)
        return KimiModel(config, weights, backend, assembly.gather)

    def cuts(self, config: KimiConfig) -> KimiCuts:
        return KimiCuts(config)

    def prefill_flops(self, config: KimiConfig) -> PrefillFlops:
        return prefill_flops(config)

    def weight_sizes(
        self, config: KimiConfig, dtype: torch.dtype, source: TensorSource
    ) -> WeightSizes:
        return weight_sizes(config, dtype, source)
