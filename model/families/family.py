"""What a family of models gives: its config's meaning, weights, model, division, sizes and costs.

A family is one folder beside this file, and one object in the registry. It is stateless, so free to
share between threads. C: its type of config; W: its type of weights. docs/new-family.md says what
one writes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from tasuki.model.config import ModelConfig
from tasuki.model.config_json import ConfigFile, ModelConfigError
from tasuki.model.costs import PrefillFlops, WeightSizes
from tasuki.model.drafts import DraftHead
from tasuki.model.forward import BF16_STEPS, Gather, PhaseActivations, Reduce, one_rank
from tasuki.model.protocol import GpuSizes, Model
from tasuki.model.vision.config import VisionConfig
from tasuki.model.weights.layers import Weights
from tasuki.model.weights.safetensors_folder import has_draft_layer
from tasuki.model.weights.shard import RankCuts
from tasuki.model.weights.source import TensorSource
from tasuki.utils.logs import Progress, no_progress

C = TypeVar("C", bound=ModelConfig)
W = TypeVar("W", bound=Weights)


class NoKernels(ModelConfigError):
    """Error: the family has no kernels for the device."""


@dataclass(frozen=True)
class Assembly:
    """What an engine adds to weights for a model. drafts: the tokens allowed as drafts; None: any
    token. reduce, gather: exchanges between ranks, if config and weights are one rank's.
    rotary_sections: of prompts with pictures; None: text only. activations: their form in products
    with FP8 weights, in each phase."""

    drafts: DraftHead | None = None
    reduce: Reduce = one_rank
    gather: Gather = one_rank
    rotary_sections: tuple[int, int, int] | None = None
    activations: PhaseActivations = BF16_STEPS


class Family(ABC, Generic[C, W]):
    """A family of models. name: as in messages; model_types: values of config.json's field."""

    name: ClassVar[str]
    model_types: ClassVar[frozenset[str]]
    has_kernels: ClassVar[bool] = False
    """True if the family has kernels for GPUs: then models on a GPU are GpuModels."""
    sees_pictures: ClassVar[bool] = False
    """True if forwards may have rows of pictures. Otherwise checkpoints are served as text only."""
    call_token: ClassVar[str] = "<tool_call>"
    """Token opening a tool call in an answer. The next turn then comes soon, and its state is kept.
    Templates decide all else about chats: their turns, the form of calls, thoughts."""
    takes_fp8_steps: ClassVar[bool] = False
    """True if build() follows Assembly.activations."""

    @abstractmethod
    def read_config(self, file: ConfigFile) -> C:
        """Return the shape of the model. REQUIRES: the file's model_type is of this family. Raises
        ModelConfigError, which names the field, for anything that is not computed."""

    @abstractmethod
    def assemble(
        self,
        config: C,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        progress: Progress = no_progress,
    ) -> W:
        """Read every tensor needed by the config from the source, one at a time, and return the
        weights. config: of the source's part of the model. dtype: of unquantised weights. progress:
        called with the number of layers done and in all. Raises WeightsError."""

    @abstractmethod
    def build(self, config: C, weights: W, assembly: Assembly) -> Model:
        """Build the model on its weights' device. On a GPU it is a GpuModel."""

    @abstractmethod
    def cuts(self, config: C) -> RankCuts:
        """Return the division of a whole model among ranks."""

    @abstractmethod
    def prefill_flops(self, config: C) -> PrefillFlops:
        """Return the FLOPs of a prefill, as the cache's policy and routing price it."""

    @abstractmethod
    def weight_sizes(self, config: C, dtype: torch.dtype, source: TensorSource) -> WeightSizes:
        """Count and return the bytes of a model's weights. source: shapes of the stored tensors,
        without memory. Raises WeightsError."""

    def gpu_sizes(self, config: C) -> GpuSizes:
        """Return the memory of the family's kernels. Raises NoKernels."""
        raise self._no_kernels("cuda")

    def published(self, name: str) -> Mapping[str, Any] | None:
        """Return the config.json of a published model, by its short or huggingface.co name; None
        for another name."""
        return None

    @property
    def published_names(self) -> tuple[str, ...]:
        """Return the short names of all models known to published()."""
        return ()

    def published_tower(self, name: str) -> VisionConfig | None:
        """Return the vision tower of a published model; None: it has none."""
        return None

    def draft_layers(self, name: str) -> int:
        """Return the number of draft layers in a checkpoint folder or of a published model. Raises
        WeightsError, ModelConfigError."""
        return int(has_draft_layer(name)) if Path(name).is_dir() else 1

    def check_device(self, device: torch.device) -> None:
        """Raise NoKernels if the family has no kernels for the device."""
        if device.type != "cpu" and not self.has_kernels:
            raise self._no_kernels(device.type)

    def _no_kernels(self, device: str) -> NoKernels:
        return NoKernels(
            f"{self.name} has no kernels for {device}, as yet: give --device cpu, or serve a model "
            "of another family"
        )
