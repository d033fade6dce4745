"""Sources of a model's weights for an assembly: published tensors by name, a rank's share, random.

ShardedSource: one rank's share of a model. An assembly asks it for the shapes of the rank's own
heads and widths. It reads those slices of the published tensors. Shape and slices come from two
places, the rank's config and the cut. If they disagree, nothing is read. One thread.

RandomSource: parameters in any model's shape, for demonstrations and benchmarks without a download.
Tensors are generated on request: a 9B model takes minutes on a CPU and a second on a GPU. A tensor
depends on (seed, name, kind of device) only. So two processes with the same config, seed and kind
of device have the same weights.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig, MoeShape

from .matrix import WHOLE, BlockCut, Matrix, Part, WeightsError
from .shard import Cut, ExpertCut, Shard, cut_of, fitting_sizes


class TensorSource(Protocol):
    """Published tensors by name without the model's prefix, as `layers.0.mlp.gate.weight`. A `part`
    of a tensor equals the same part of the whole. Bytes outside it are not read if the source can
    avoid it."""

    def has(self, name: str) -> bool:
        """Return true if the tensor exists, as plain numbers or quantised."""

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        """Return the tensor in exactly this shape, converted to dtype, contiguous. A quantised
        tensor is dequantised. Raises WeightsError."""

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        """Return the matrix [..., out, in] in exactly this shape. It stays as stored if it is
        quantised, else it is in dtype. Raises WeightsError, also if `part` cuts a block of
        quantised values."""

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        """Return matrix(name, shape, dtype) of all names, stacked in a new first dimension. Raises
        WeightsError, also if they are stored in different ways."""


def stacked(
    source: TensorSource, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype
) -> Matrix:
    """Stack the matrices, read one by one."""
    return Matrix.stacked([source.matrix(name, shape, dtype) for name in names], names)


class PlainSource(ABC):
    """Base of `TensorSource`s with plain numbers only."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Implement TensorSource.has."""

    @abstractmethod
    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        """Implement TensorSource.read."""

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        """Implement TensorSource.matrix."""
        return Matrix.of(self.read(name, shape, dtype, part))

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        """Implement TensorSource.stack."""
        return stacked(self, names, shape, dtype)


class ShardedSource:
    """A `TensorSource` of one rank's share. A share is read whole: a `part` of it raises
    WeightsError."""

    def __init__(self, source: TensorSource, config: ModelConfig, shard: Shard) -> None:
        """config: of the whole model. REQUIRES: it fits the shard."""
        self._source = source
        self._config = config
        self._shard = shard

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        cut = self._cut(name, shape, part)
        if cut is None:
            return self._source.read(name, shape, dtype)
        whole = cut.whole(shape)
        return torch.cat([self._source.read(name, whole, dtype, own) for own in cut.parts], cut.dim)

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        cut = self._cut(name, shape, part)
        if cut is None:
            return self._source.matrix(name, shape, dtype)
        whole = cut.whole(shape)
        try:
            return Matrix.fused([self._source.matrix(name, whole, dtype, own) for own in cut.parts])
        except BlockCut as error:
            raise BlockCut(f"{error}; {self._fix(name, error.unit)}", error.unit) from error

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        if any(self._cut(name, shape, WHOLE) for name in names):
            return stacked(self, names, shape, dtype)
        return self._source.stack(names, shape, dtype)

    def _cut(self, name: str, shape: tuple[int, ...], part: Part) -> Cut | None:
        if part != WHOLE:
            raise WeightsError(f"tensor {name} is a rank's share already, which is read whole")
        cut = cut_of(self._config, self._shard, name)
        if cut is not None and cut.count != shape[cut.dim]:
            raise WeightsError(
                f"tensor {name}: rank {self._shard.rank} of {self._shard.ranks} has {cut.count} of "
                f"dimension {cut.dim}, and its share is to have the shape {list(shape)}"
            )
        return cut

    def _fix(self, name: str, unit: int) -> str:
        """Return the fix: a text with the possible numbers of ranks. They cut this matrix between
        its blocks of `unit`."""
        sizes = [
            ranks
            for ranks in fitting_sizes(self._config, self._shard.experts)
            if all(self._is_between_blocks(name, rank, ranks, unit) for rank in range(ranks))
        ]
        fix = f"give --tensor-parallel one of {', '.join(map(str, sizes))}"
        shape = self._config.feed_forward
        by_width = self._shard.experts is ExpertCut.BY_WIDTH
        if by_width and ".experts." in name and isinstance(shape, MoeShape):
            fix += ", or --expert-parallel, which cuts no expert"
        return fix

    def _is_between_blocks(self, name: str, rank: int, ranks: int, unit: int) -> bool:
        cut = cut_of(self._config, Shard(rank, ranks, self._shard.experts), name)
        return cut is None or all(
            span.start % unit == 0 and (span.stop % unit == 0 or span.stop == cut.size)
            for span in cut.spans
        )


_LOGIT_SPREAD = 16.0


class RandomSource(PlainSource):
    """A source with fused experts and every other requested tensor. A part has the same numbers as
    in the whole tensor."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._seed = seed
        self._device = torch.device(device)

    def has(self, name: str) -> bool:
        return True

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        return self._whole(name, shape, dtype)[part].contiguous()

    def _whole(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest[:7], "little"))
        if name.endswith("A_log"):
            # Decay rates from 1 to 16 a step, as such models are initialised for training.
            return self._uniform(shape, 1, 16, generator).log().to(dtype)
        if name.endswith("dt_bias"):
            return self._uniform(shape, -7, -2, generator).to(dtype)
        noise = torch.randn(shape, generator=generator, device=self._device)
        if name.endswith("linear_attn.norm.weight"):
            return (1 + 0.1 * noise).to(dtype)
        if len(shape) == 1:
            return (0.1 * noise).to(dtype)
        gain = _LOGIT_SPREAD if name in ("embed_tokens.weight", "lm_head.weight") else 1.0
        # In place, because a whole layer's experts in float32 are gigabytes.
        return noise.mul_(gain / math.sqrt(shape[-1])).to(dtype)

    def _uniform(
        self, shape: tuple[int, ...], low: float, high: float, generator: torch.Generator
    ) -> Tensor:
        return torch.empty(shape, device=self._device).uniform_(low, high, generator=generator)
