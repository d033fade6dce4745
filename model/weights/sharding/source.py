"""One rank's share of a model, as a source of weights: an assembly asks it for the shapes of the
rank's own heads and widths, and it reads those slices of the published tensors.

Shape and slices come from two places, the rank's config and the cut: where they disagree nothing is
read. One thread.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig, MoeShape

from ..matrix import Matrix
from ..part import WHOLE, BlockCut, Part, WeightsError
from ..source import TensorSource, stacked
from .cut import Cut, cut_of
from .shard import ExpertCut, Shard, fitting_sizes


class ShardedSource:
    """As TensorSource. A share is read whole: no `part` of it is taken."""

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
            raise BlockCut(f"{error}; {self._mend(name, error.unit)}", error.unit) from error

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

    def _mend(self, name: str, unit: int) -> str:
        """Numbers of ranks that cut this matrix between its blocks of `unit`."""
        sizes = [
            ranks
            for ranks in fitting_sizes(self._config, self._shard.experts)
            if all(self._is_between_blocks(name, rank, ranks, unit) for rank in range(ranks))
        ]
        mend = f"give --tensor-parallel one of {', '.join(map(str, sizes))}"
        shape = self._config.feed_forward
        by_width = self._shard.experts is ExpertCut.BY_WIDTH
        if by_width and ".experts." in name and isinstance(shape, MoeShape):
            mend += ", or --expert-parallel, which cuts no expert"
        return mend

    def _is_between_blocks(self, name: str, rank: int, ranks: int, unit: int) -> bool:
        cut = cut_of(self._config, Shard(rank, ranks, self._shard.experts), name)
        return cut is None or all(
            span.start % unit == 0 and (span.stop % unit == 0 or span.stop == cut.size)
            for span in cut.spans
        )
