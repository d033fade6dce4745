"""The family of Qwen3.5, Qwen3.6 and Qwen3.8, as the registry knows it."""

from collections.abc import Mapping
from typing import Any

import torch

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import ConfigFile
from tasuki.model.costs import PrefillFlops, WeightSizes
from tasuki.model.families.family import Assembly, Family
from tasuki.model.forward import Activations
from tasuki.model.ops.linear.fp8_rows_reference import CodedProducts
from tasuki.model.ops.linear.reference import EXACT
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.prompt_positions import rotary_axes
from tasuki.model.weights.source import TensorSource
from tasuki.utils.logs import Progress, no_progress

from .costs import Qwen35GpuSizes, prefill_flops, weight_sizes
from .cuts import Qwen35Cuts
from .published import PUBLISHED, published_tower, size_of
from .reader import DENSE_TYPES, MOE_TYPES, read_config
from .stack import Qwen35Model
from .weights import ModelWeights, assemble


class Qwen35Family(Family[DeltaNetConfig, ModelWeights]):
    name = "Qwen3.5"
    model_types = DENSE_TYPES | MOE_TYPES
    has_kernels = True
    sees_pictures = True
    takes_fp8_steps = True

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

    def build(
        self, config: DeltaNetConfig, weights: ModelWeights, assembly: Assembly
    ) -> Qwen35Model:
        sections, reduce, gather = assembly.rotary_sections, assembly.reduce, assembly.gather
        axes = None if sections is None else rotary_axes(sections, config.rotary_dim // 2)
        if weights.device.type == "cpu":
            is_coded = assembly.activations.steps is Activations.ROWS
            products = CodedProducts() if is_coded else EXACT
            backend = TorchBackend(config, reduce, axes, products)
            return Qwen35Model(config, weights, backend, gather, assembly.drafts)
        # A machine without Triton never needs these modules.
        from tasuki.model.backends.triton_backend import TritonBackend

        from .gpu import Qwen35OnGpu

        on_gpu = TritonBackend(
            *(config, weights.dtype, weights.device, reduce, axes, assembly.activations)
        )
        return Qwen35OnGpu(config, weights, on_gpu, gather, assembly.drafts)

    def cuts(self, config: DeltaNetConfig) -> Qwen35Cuts:
        return Qwen35Cuts(config)

    def prefill_flops(self, config: DeltaNetConfig) -> PrefillFlops:
        return prefill_flops(config)

    def weight_sizes(
        self, config: DeltaNetConfig, dtype: torch.dtype, source: TensorSource
    ) -> WeightSizes:
        return weight_sizes(config, self.assemble(config, source, dtype, "meta"))

    def gpu_sizes(self, config: DeltaNetConfig) -> Qwen35GpuSizes:
        return Qwen35GpuSizes(config)

    def published(self, name: str) -> Mapping[str, Any] | None:
        return PUBLISHED.get(size_of(name))

    @property
    def published_names(self) -> tuple[str, ...]:
        return tuple(PUBLISHED)

    def published_tower(self, name: str) -> VisionConfig | None:
        return published_tower(name)
