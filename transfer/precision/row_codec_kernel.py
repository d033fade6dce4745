"""GPU kernels for fp8 rows, equal bit for bit to their reference wire_layout.py, and a layer codec
with them.

A program encodes or decodes some rows of one unit. It reads and writes each byte once, so the floor
is memory bandwidth. Thread rule: LayerCodec's; work is queued on a stream of its own and waited
for. REQUIRES: the bytes to read are written (the layer's event has fired, the chunk has arrived).
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from tasuki.transfer.settings import Precision
from tasuki.utils.triton.fp8_rows import (
    code_numbers,
    largest_bits,
    row_codes,
    row_factor,
    row_scale,
)
from tasuki.utils.triton.kernel_spec import KernelSpec

from .layer_codec import RowCodec, TorchLayerCodec
from .wire_layout import RowFormat, WireUnits

_WARPS = 4
_ROWS = 16
"""Number of rows handled by one program of the kernel."""
_SCRATCH_NUMBERS = 1 << 24
_HIGH_PRIORITY = -1


class GpuLayerCodec:
    """Layer codec on a GPU. memory: an arena's bytes on the device, uint8 [slabs * slab_bytes],
    shared and never copied."""

    def __init__(self, memory: torch.Tensor, units: WireUnits) -> None:
        self._codec = TorchLayerCodec(memory, units, KernelRows(), _SCRATCH_NUMBERS)
        # High priority: run before waiting blocks of a forward, because a layer chunk waits for
        # this.
        self._stream = (
            torch.cuda.Stream(memory.device, priority=_HIGH_PRIORITY) if memory.is_cuda else None
        )

    def batch(self, layer: int) -> int:
        return self._codec.batch(layer)

    def encode(self, layer: int, ids: Sequence[int], offset: int) -> None:
        with torch.cuda.stream(self._stream):
            self._codec.encode(layer, ids, offset)
        self._wait()

    def decode(self, layer: int, ids: Sequence[int]) -> None:
        with torch.cuda.stream(self._stream):
            self._codec.decode(layer, ids)
        self._wait()

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class KernelRows(RowCodec):
    """Encoder and decoder of rows by the fp8 kernels. For bf16 it uses RowCodec's operators,
    because bf16 is one cast."""

    def encode(self, form: RowFormat, values: torch.Tensor) -> torch.Tensor:
        if form.precision is not Precision.FP8:
            return super().encode(form, values)
        units = len(values)
        encoded = torch.empty(units, form.encoded_bytes, dtype=torch.uint8, device=values.device)
        _launch(_encode_kernel, form, values, encoded)
        return encoded

    def decode(self, form: RowFormat, encoded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if form.precision is not Precision.FP8:
            return super().decode(form, encoded, dtype)
        units = len(encoded)
        values = torch.empty(units, form.rows, form.width, dtype=dtype, device=encoded.device)
        _launch(_decode_kernel, form, encoded, values)
        return values


def _launch(kernel: Any, form: RowFormat, source: torch.Tensor, target: torch.Tensor) -> None:
    """Launch the encoding or decoding kernel on the current stream. source, target: [units, ...]
    each."""
    kernel[(triton.cdiv(form.rows, _ROWS), len(source))](
        source.contiguous(),
        target,
        form.rows,
        form.width,
        form.encoded_bytes,
        ROWS=_ROWS,
        BLOCK=triton.next_power_of_2(form.width),
        num_warps=_WARPS,
    )


@triton.jit(do_not_specialize=["rows", "width", "stride"])
def _encode_kernel(values, encoded, rows, width, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    unit = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    index = row[:, None] * width + column[None, :]
    value = tl.load(values + unit * rows * width + index, mask=inside, other=0).to(tl.float32)
    scale = row_scale(largest_bits(value))
    target = encoded + unit * stride
    tl.store(target + index, row_codes(value, scale), mask=inside)
    scales = rows * width + row
    tl.store(target + scales, scale.to(tl.uint8), mask=row < rows)
    # Zeros in place of old bytes.
    padding = rows * width + rows + tl.arange(0, 16)
    first = tl.program_id(0) == 0
    tl.store(target + padding, tl.zeros([16], tl.uint8), mask=(padding < stride) & first)


@triton.jit(do_not_specialize=["rows", "width", "stride"])
def _decode_kernel(encoded, values, rows, width, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    unit = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    index = row[:, None] * width + column[None, :]
    source = encoded + unit * stride
    code = tl.load(source + index, mask=inside, other=0).to(tl.int32)
    scale = tl.load(source + rows * width + row, mask=row < rows, other=1).to(tl.int32)
    value = code_numbers(code) * row_factor(scale)[:, None]
    target = values + unit * rows * width + index
    tl.store(target, value.to(values.dtype.element_ty), mask=inside)


def compile_specs() -> list[KernelSpec]:
    shape = {"rows": "i32", "width": "i32", "stride": "i32"}
    specs = []
    for held, block in (("bf16", 256), ("fp32", 128)):
        constants: dict[str, object] = {"ROWS": _ROWS, "BLOCK": block}
        specs += [
            KernelSpec(
                name=f"encode_fp8_{held}",
                kernel=_encode_kernel,
                signature={"values": f"*{held}", "encoded": "*u8", **shape},
                constants=constants,
                num_warps=_WARPS,
            ),
            KernelSpec(
                name=f"decode_fp8_{held}",
                kernel=_decode_kernel,
                signature={"encoded": "*u8", "values": f"*{held}", **shape},
                constants=constants,
                num_warps=_WARPS,
            ),
        ]
    return specs
