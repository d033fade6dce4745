"""Sources of a model's weights: published tensors by name, one rank's share of them, random
tensors.

ShardedSource: one rank's share of a model. The caller requests shapes with the rank's own heads and
widths. The source reads the rank's slices of the published tensors. The requested shape must agree
with the slices, else nothing is read. One thread uses it.

RandomSource: parameters in any model's shape, for demonstrations and benchmarks without a download.
Tensors are generated on request. A 9B model takes minutes on a CPU and a second on a GPU. A tensor
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

from .matrix import WHOLE, BlockCut, Matrix, Part, WeightsError
from .shard import Cut, ExpertCut, RankCuts, Shard


class TensorSource(Protocol):
    """Published tensors by name without the model's prefix, as `layers.0.mlp.gate.weight`. A `part`
    read alone has the same numbers as in the whole tensor. Bytes outside it are not read if the
    source can avoid it."""

    def has(self, name: str) -> bool:
        """Return true if the named tensor exists, plain or quantised."""

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        """Return the named tensor in exactly this shape, contiguous and converted to dtype. A
        quantised tensor is dequantised. part: the part to read. Raises WeightsError."""

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        """Return the named matrix [..., out, in] in exactly this shape. A quantised matrix stays as
        stored, a plain one is converted to dtype. part: the part to read. Raises WeightsError, also
        if `part` cuts a block with one scale."""

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        """Return the named matrices, each of this shape, stacked in a new first dimension. Raises
        WeightsError, also if they are stored in different ways."""

    def stored(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """Return the named tensor whole, in the dtype it is stored in, such as integers or codes.
        It is a view of a mapped file where the source can give one. None: the source stores no such
        tensor. Raises WeightsError for another shape."""


def stacked(
    source: TensorSource, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype
) -> Matrix:
    """Read the named matrices one by one from the source, and return their stack."""
    return Matrix.stacked([source.matrix(name, shape, dtype) for name in names], names)


class PlainSource(ABC):
    """Base class of `TensorSource`s without quantised tensors."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return true if the named tensor exists; see TensorSource."""

    @abstractmethod
    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        """Return the named tensor, or a part of it; see TensorSource."""

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        """Return the named tensor as an unquantised matrix; see TensorSource."""
        return Matrix.of(self.read(name, shape, dtype, part))

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        """Return the stack of the named matrices; see TensorSource."""
        return stacked(self, names, shape, dtype)

    def stored(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """Return None: every tensor is made in the dtype asked for."""
        return None


class ShardedSource:
    """A `TensorSource` of one tensor-parallel rank's share. A share is read whole: a `part` raises
    WeightsError."""

    def __init__(self, source: TensorSource, cuts: RankCuts, shard: Shard) -> None:
        """source: source of the whole tensors; cuts: division of the whole model. REQUIRES: the
        model can be divided by the shard."""
        self._source = source
        self._cuts = cuts
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

    def stored(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        return self._source.stored(name, shape)

    def _cut(self, name: str, shape: tuple[int, ...], part: Part) -> Cut | None:
        if part != WHOLE:
            raise WeightsError(f"tensor {name} is a rank's share already, which is read whole")
        cut = self._cuts.cut(self._shard, name)
        if cut is not None and cut.count != shape[cut.dim]:
            raise WeightsError(
                f"tensor {name}: rank {self._shard.rank} of {self._shard.ranks} has {cut.count} of "
                f"dimension {cut.dim}, and its share is to have the shape {list(shape)}"
            )
        return cut

    def _fix(self, name: str, unit: int) -> str:
        """Return a text for an error message: the numbers of ranks able to divide this matrix
        between its blocks of `unit` rows or columns."""
        sizes = [
            ranks
            for ranks in self._cuts.fitting_sizes(self._shard.experts)
            if all(self._is_between_blocks(name, rank, ranks, unit) for rank in range(ranks))
        ]
        fix = f"give --tensor-parallel one of {', '.join(map(str, sizes))}"
        by_width = self._shard.experts is ExpertCut.BY_WIDTH
        if by_width and ".experts." in name:
            fix += ", or --expert-parallel, which cuts no expert"
        return fix

    def _is_between_blocks(self, name: str, rank: int, ranks: int, unit: int) -> bool:
        cut = self._cuts.cut(Shard(rank, ranks, self._shard.experts), name)
        return cut is None or all(
            span.start % unit == 0 and (span.stop % unit == 0 or span.stop == cut.size)
            for span in cut.spans
        )


_LOGIT_SPREAD = 16.0


class RandomSource(PlainSource):
    """A source of random weights. Every requested tensor exists, and experts are fused. A part has
    the same numbers as in the whole tensor."""

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
