"""The device's greatest rates, measured in the same run as the figures compared with them.

A floor is bytes over the copy bandwidth, or operations over the rate of a large matrix product;
datasheet rates are reached by no program.
"""

from dataclasses import dataclass

import torch

from .timing import median_seconds

_GPU_COPY_BYTES = 4 * 2**30
_CPU_COPY_BYTES = 64 * 2**20
_GPU_MATMUL_SIZE = 8192
_CPU_MATMUL_SIZE = 512


@dataclass(frozen=True)
class Floors:
    """copy_bandwidth: bytes read plus bytes written, a second. matmul_rate: FLOPs a second of a
    square product of random values in the model's dtype."""

    copy_bandwidth: float
    matmul_rate: float

    def of_bytes(self, count: float) -> float:
        """Seconds to move that many bytes, reads and writes together."""
        return count / self.copy_bandwidth

    def of_flops(self, count: float) -> float:
        """Seconds."""
        return count / self.matmul_rate


def measure_floors(device: torch.device, dtype: torch.dtype) -> Floors:
    """Takes about a second; frees what it allocated."""
    on_gpu = device.type == "cuda"
    floors = Floors(
        _copy_bandwidth(device, _GPU_COPY_BYTES if on_gpu else _CPU_COPY_BYTES),
        _matmul_rate(device, dtype, _GPU_MATMUL_SIZE if on_gpu else _CPU_MATMUL_SIZE),
    )
    if on_gpu:
        torch.cuda.empty_cache()
    return floors


def _copy_bandwidth(device: torch.device, size: int) -> float:
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), device)


def _matmul_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    # Random values: products of zeros run faster than those of real data.
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    seconds = median_seconds(lambda: torch.mm(left, right.t(), out=out), device)
    return 2 * size**3 / seconds
