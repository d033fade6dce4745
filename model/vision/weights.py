"""Weights of a vision tower: their published names and shapes, and their assembly.

TowerFiles reads them from a checkpoint's safetensors files, under `model.visual.` or `visual.`.
Towers are unquantised: recipes for FP8 and NVFP4 leave them so, and a quantised tower is rejected.
A tensor of the tower not read is rejected too, since its part would not be computed. Immutable
after assembly, so free to share between threads.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tasuki.model.weights.copied_files import kept_by
from tasuki.model.weights.layers import tensors
from tasuki.model.weights.matrix import WHOLE, Part, WeightsError
from tasuki.model.weights.safetensors_files import StoredTensors
from tasuki.model.weights.safetensors_folder import weight_files
from tasuki.model.weights.source import PlainSource

from .config import COLOURS, VisionConfig

PREFIXES = ("model.visual.", "visual.")
"""Possible prefixes of a tower's tensor names, in the order of the search."""
_FIRST = "patch_embed.proj.weight"
_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True)
class Affine:
    """The weight and bias of a linear layer or of a norm. weight: [out, in] or [n]; bias: [out] or
    [n]."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class BlockWeights:
    """Weights of one block of a vision tower. qkv [3 * hidden, hidden], in the order query, key,
    value; proj [hidden, hidden]; fc1 [intermediate, hidden]; fc2 [hidden, intermediate]; norms
    [hidden]."""

    attention_norm: Affine
    qkv: Affine
    proj: Affine
    mlp_norm: Affine
    fc1: Affine
    fc2: Affine


@dataclass(frozen=True)
class TowerWeights:
    """Weights of a vision tower. patch [hidden, patch_values]; positions [side * side, hidden];
    merger_norm [hidden]; merger_fc1 [merged * hidden, merged * hidden]; merger_fc2 [out_hidden,
    merged * hidden]."""

    patch: Affine
    positions: Tensor
    blocks: tuple[BlockWeights, ...]
    merger_norm: Affine
    merger_fc1: Affine
    merger_fc2: Affine

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the tower's weights and activations."""
        return self.positions.dtype

    @property
    def device(self) -> torch.device:
        return self.positions.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in tensors(self))


class TowerFiles(PlainSource):
    """The source of a vision tower's tensors in a checkpoint folder, by names without the prefix.
    Opening it reads headers only. Thread rule: one thread. Raises WeightsError."""

    def __init__(self, directory: Path, tensors: type[StoredTensors] = StoredTensors) -> None:
        """tensors: class for opening the files."""
        self._directory = directory
        self._tensors = tensors(weight_files(directory))
        found = [prefix for prefix in PREFIXES if prefix + _FIRST in self._tensors]
        if not found:
            raise WeightsError(
                f"{directory}: tensor {PREFIXES[0]}{_FIRST} is missing, the checkpoint has no "
                "vision tower; serve text only"
            )
        self._prefix = found[0]

    def has(self, name: str) -> bool:
        return self._prefix + name in self._tensors

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        full = self._prefix + name
        if full not in self._tensors:
            raise WeightsError(f"{self._directory}: tensor {full} is missing; fetch all shards")
        stored, found = self._tensors.dtype(full), self._tensors.shape(full)
        place = f"{self._tensors.path(full)}: tensor {full}"
        if stored not in _PLAIN:
            raise WeightsError(f"{place} is {stored}; take a checkpoint with a plain tower")
        if found != shape:
            raise WeightsError(
                f"{place} has shape {list(found)}, config.json asks for {list(shape)}; fetch both "
                "from the same model"
            )
        return self._tensors.read(full, part).to(dtype)

    def check_left_over(self) -> None:
        """Raise WeightsError if a tensor of the tower was not read. Call it after all reading."""
        for name in self._tensors.unread():
            if name.startswith(self._prefix):
                raise WeightsError(
                    f"{self._tensors.path(name)}: tensor {name} has no place in the tower; fetch "
                    "config.json and all shards from the same model"
                )

    def close(self) -> None:
        """Forbid later reads. A second call does nothing."""
        self._tensors.close()


def load_tower_weights(
    directory: Path | str,
    config: VisionConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> TowerWeights:
    """Return the vision tower of a checkpoint folder, converted to `dtype`. Raises WeightsError,
    also for a tensor of the tower left over."""
    source = TowerFiles(Path(directory), kept_by(device))
    try:
        weights = assemble_tower(config, source, dtype, device)
        source.check_left_over()
    finally:
        source.close()
    return weights


def has_tower(directory: Path | str) -> bool:
    """Return true if the folder has weights of a vision tower. It reads headers only. Raises
    WeightsError."""
    stored = StoredTensors(weight_files(Path(directory)))
    stored.close()
    return any(prefix + _FIRST in stored for prefix in PREFIXES)


def assemble_tower(
    config: VisionConfig,
    source: PlainSource,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> TowerWeights:
    """Read each tensor of a vision tower once, from any source of unquantised tensors, and return
    the weights. Raises WeightsError."""
    hidden, wide = config.hidden, config.merged * config.hidden

    def read(name: str, *shape: int) -> Tensor:
        return source.read(name, shape, dtype).to(device)

    def affine(name: str, *shape: int) -> Affine:
        return Affine(read(f"{name}.weight", *shape), read(f"{name}.bias", shape[0]))

    def block(name: str) -> BlockWeights:
        return BlockWeights(
            attention_norm=affine(f"{name}.norm1", hidden),
            qkv=affine(f"{name}.attn.qkv", 3 * hidden, hidden),
            proj=affine(f"{name}.attn.proj", hidden, hidden),
            mlp_norm=affine(f"{name}.norm2", hidden),
            fc1=affine(f"{name}.mlp.linear_fc1", config.intermediate, hidden),
            fc2=affine(f"{name}.mlp.linear_fc2", hidden, config.intermediate),
        )

    kernel = (hidden, COLOURS, config.frames, config.patch, config.patch)
    patch = affine("patch_embed.proj", *kernel)
    return TowerWeights(
        # A stride as wide as the kernel: the convolution is one product a patch.
        patch=Affine(patch.weight.flatten(1), patch.bias),
        positions=read("pos_embed.weight", config.side * config.side, hidden),
        blocks=tuple(block(f"blocks.{layer}") for layer in range(config.depth)),
        merger_norm=affine("merger.norm", hidden),
        merger_fc1=affine("merger.linear_fc1", wide, wide),
        merger_fc2=affine("merger.linear_fc2", config.out_hidden, wide),
    )
