"""What compiled code needs to launch a kernel that Triton compiled."""

from typing import Any

KernelHandle = tuple[int, int, int]
"""The driver's handle, warps, and bytes of shared memory."""


def kernel_handle(compiled: Any) -> KernelHandle:
    """compiled: what a launch returned; it must outlive whoever uses the handle."""
    return compiled.function, compiled.metadata.num_warps, compiled.metadata.shared
