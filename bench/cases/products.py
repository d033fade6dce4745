"""Products of few rows with a weight matrix: a stream of weights, beside the library's product."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.linear.gemv import gemv, norm_gemv, norm_gemv_swiglu
from tasuki.model.ops.linear.small_batch import small_batch

from .case import Case
from .stage import Stage, turns_to_overflow

_EPS = 1e-6
_MOST_TURNS = 16
_BATCH = 16


def cases(stage: Stage) -> Iterator[Case]:
    config = stage.model
    hidden, width = config.hidden, 12288
    values = config.value_heads * config.value_dim
    in_proj = config.conv_channels + values + 2 * config.value_heads
    norm = torch.rand(hidden, device=stage.device)

    def normed(x: Tensor, weight: Tensor) -> object:
        return norm_gemv(x, x, norm, _EPS, weight)

    def swiglu(x: Tensor, weight: Tensor) -> object:
        return norm_gemv_swiglu(x, x, norm, _EPS, weight)

    yield _case(stage, "add, norm, GDN in_proj", 1, in_proj, hidden, normed)
    yield _case(stage, "add, norm, gate_up, swiglu", 1, 2 * width, hidden, swiglu)
    yield _case(stage, "out_proj", 1, hidden, values, gemv)
    yield _case(stage, "down", 1, hidden, width, gemv)
    yield _case(stage, "out_proj", _BATCH, hidden, values, small_batch)
    yield _case(stage, "down", _BATCH, hidden, width, small_batch)


def _case(
    stage: Stage,
    name: str,
    batch: int,
    rows: int,
    columns: int,
    product: Callable[[Tensor, Tensor], object],
) -> Case:
    x = stage.random(batch, columns)
    size = 2 * rows * columns
    weights = [stage.random(rows, columns) for _ in range(turns_to_overflow(size, _MOST_TURNS))]
    return Case(
        f"{name}, {batch} rows, weights {rows} x {columns}",
        [partial(product, x, weight) for weight in weights],
        bytes=size + 2 * batch * (rows + columns),
        captured={"torch linear": [partial(functional.linear, x, weight) for weight in weights]},
        share=0.85,
    )
