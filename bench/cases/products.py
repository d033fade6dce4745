"""Cases of matrix products of few rows with a weight matrix, bounded by reading the weights. Each
is compared with the library's product."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.linear.fp8_gemv import fp8_gemv, norm_fp8_gemv, norm_fp8_gemv_swiglu
from tasuki.model.ops.linear.fp8_product import fp8_product, fp8_product_swiglu
from tasuki.model.ops.linear.gemv import gemv, norm_gemv, norm_gemv_swiglu
from tasuki.model.ops.linear.small_batch import small_batch
from tasuki.model.quantise.checkpoint import fp8_block
from tasuki.model.weights.kernel_layout import for_kernels
from tasuki.model.weights.matrix import Kind
from tasuki.model.weights.quantised_segments import BLOCK, Fp8

from .case import Case, Stage, turns_to_overflow

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
    yield from _fp8_cases(stage, norm, in_proj, width, values)


def _fp8_cases(stage: Stage, norm: Tensor, in_proj: int, width: int, values: int) -> Iterator[Case]:
    """Yield cases of the same products with weights in FP8 blocks. They include batch sizes left to
    the library in bf16."""
    hidden = stage.model.hidden

    def normed(x: Tensor, weight: Fp8) -> object:
        return norm_fp8_gemv(x, x, norm, _EPS, weight)

    def swiglu(x: Tensor, weight: Fp8) -> object:
        return norm_fp8_gemv_swiglu(x, x, norm, _EPS, weight)

    yield _fp8_case(stage, "add, norm, GDN in_proj", 1, in_proj, hidden, normed)
    yield _fp8_case(stage, "add, norm, gate_up, swiglu", 1, 2 * width, hidden, swiglu)
    yield _fp8_case(stage, "out_proj", 1, hidden, values, fp8_gemv)
    yield _fp8_case(stage, "down", 1, hidden, width, fp8_gemv)
    for batch in (4, 16, 32, 64, 128):
        yield _fp8_case(stage, "in_proj", batch, in_proj, hidden, fp8_product)
        yield _fp8_case(stage, "gate_up, swiglu", batch, 2 * width, hidden, fp8_product_swiglu)
        yield _fp8_case(stage, "out_proj", batch, hidden, values, fp8_product)
        yield _fp8_case(stage, "down", batch, hidden, width, fp8_product)


def _fp8_case(
    stage: Stage,
    name: str,
    batch: int,
    rows: int,
    columns: int,
    product: Callable[[Tensor, Fp8], object],
) -> Case:
    x = stage.random(batch, columns)
    size = rows * columns
    turns = turns_to_overflow(size, _MOST_TURNS)
    plain = [stage.random(rows, columns) for _ in range(turns)]
    weights = [in_blocks(weight) for weight in plain]
    return Case(
        f"FP8 {name}, {batch} rows, weights {rows} x {columns}",
        [partial(product, x, weight) for weight in weights],
        bytes=size + 2 * batch * (rows + columns),
        captured={"bf16 torch linear": [partial(functional.linear, x, w) for w in plain]},
    )


def in_blocks(weight: Tensor) -> Fp8:
    made = fp8_block(weight)
    scales = made["weight_scale_inv"].float()
    (laid_out,) = for_kernels([Fp8(made["weight"], scales, BLOCK, BLOCK, Kind.FP8_BLOCK)])
    assert isinstance(laid_out, Fp8)
    return laid_out


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
