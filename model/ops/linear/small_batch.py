"""Products of up to 16 rows with a weight matrix of few rows, computed by one round of programs
(one for each multiprocessor).

For narrow outputs a library splits the inner dimension and adds the parts in a launch of its own.
Here a program owns 32 weight rows over all columns, and as many programs as there are
multiprocessors read everything simultaneously. The first weights are loaded before the kernel waits
for the kernel before it (instructions.py). Reference: `torch.nn.functional.linear`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent
from tasuki.utils.triton.kernel_spec import KernelSpec

MOST_ROWS = 16
"""Largest number of rows of x: those of one matrix instruction."""


@dataclass(frozen=True)
class Tile:
    """Work of one program: `rows` weight rows, `columns` of them in each step, and the number of
    steps in flight."""

    rows: int
    columns: int
    stages: int
    warps: int


# The fastest of 20 over 9B's out_proj and down on an H200: 11.6 and 27.4 us at 16 rows. cuBLAS
# takes 12.8 and 28.9 us there; on 9B's wider matrices it is as fast.
_TILE = Tile(32, 256, 6, 4)
_LEAST_FILLED = 0.75


def is_one_round(weight: Tensor) -> bool:
    """Return true if this kernel suits the matrix: it is bf16 on a GPU, with whole tiles of
    columns. It makes a program for nearly every multiprocessor of its device, but not more
    programs."""
    if weight.dtype is not torch.bfloat16 or weight.shape[1] % _TILE.columns or not weight.is_cuda:
        return False
    processors = torch.cuda.get_device_properties(weight.device).multi_processor_count
    return _LEAST_FILLED <= weight.shape[0] / _TILE.rows / processors <= 1


def small_batch(x: Tensor, weight: Tensor, tile: Tile = _TILE) -> Tensor:
    """Return x times the weight transposed, [B, rows], in x's dtype. x: [B, columns] contiguous,
    bf16, B at most MOST_ROWS. weight: [rows, columns] contiguous, columns a multiple of the
    tile's."""
    batch, columns = x.shape
    rows = weight.shape[0]
    output = x.new_empty(batch, rows)
    _small_batch_kernel[(triton.cdiv(rows, tile.rows),)](
        x,
        weight,
        output,
        batch,
        rows,
        COLUMNS=columns,
        BATCH=MOST_ROWS,
        ROWS=tile.rows,
        BLOCK=tile.columns,
        STAGES=tile.stages,
        **dependent(x),
        num_warps=tile.warps,
    )
    return output


@triton.jit(do_not_specialize=["batch", "rows"])
def _small_batch_kernel(
    x,
    weight,
    output,
    batch,
    rows,
    COLUMNS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    item = tl.arange(0, BATCH)
    column = tl.arange(0, BLOCK)
    of_row = weight + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    of_item = x + item[None, :] * COLUMNS + column[:, None]
    inside = (row < rows)[:, None]
    counts = (item < batch)[None, :]
    first = tl.load(of_row, inside, 0.0)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    result = tl.dot(first, tl.load(of_item, counts, 0.0))
    for begin in tl.range(BLOCK, COLUMNS, BLOCK, num_stages=STAGES):
        weights = tl.load(of_row + begin, inside, 0.0)
        values = tl.load(of_item + begin, counts, 0.0)
        result = tl.dot(weights, values, result)
    at = output + item[None, :] * rows + row[:, None]
    tl.store(at, result.to(output.dtype.element_ty), inside & counts)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for out_proj and down of 9B."""
    tile = {"BATCH": MOST_ROWS, "ROWS": _TILE.rows, "BLOCK": _TILE.columns, "STAGES": _TILE.stages}
    constants = tile | {"DEPENDENT": True}
    return [
        KernelSpec.of(
            f"small_batch_{name}",
            _small_batch_kernel,
            constants | {"COLUMNS": columns},
            _TILE.warps,
        )
        for name, columns in (("out_proj", 4096), ("down", 12288))
    ]
