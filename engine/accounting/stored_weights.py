"""How many bytes the weights of a config's model take as they are stored."""

from collections.abc import Callable
from pathlib import Path

import torch

from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.model.quantise.quantised_source import QuantisedSource
from tasuki.model.quantise.recipe import RECIPES
from tasuki.model.quantization_config import QuantizationConfig
from tasuki.model.weights.files.stored_tensors import StoredShapes
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.model.weights.source import TensorSource
from tasuki.model.weights.weight_sizes import ShapesOnly, WeightSizes

Share = Callable[[TensorSource], TensorSource]
"""What a rank reads of a source of the whole model."""


def whole(source: TensorSource) -> TensorSource:
    """Of a rank that has all."""
    return source


def weights_of(
    model: ModelConfig, config: EngineConfig, quantization: str = "", share: Share = whole
) -> WeightSizes:
    """Of config's folder where that is quantised, by the headers of its files; of plain weights
    else. model: what the rank has of it, and share: how it reads that. quantization: count them in
    that format, whatever config names. Raises WeightsError and ModelConfigError."""
    dtype = getattr(torch, config.compute_dtype)
    if quantization:
        source = QuantisedSource(ShapesOnly(), RECIPES[quantization])
        return WeightSizes.of(model, dtype, share(source))
    folder = Path(config.model)
    is_quantised = bool(config.model) and QuantizationConfig.load(folder).method is not None
    if not is_quantised or not any(folder.glob("*.safetensors")):
        return WeightSizes.of(model, dtype)
    with Checkpoint(folder, StoredShapes) as stored:
        return WeightSizes.of(model, dtype, share(stored))
