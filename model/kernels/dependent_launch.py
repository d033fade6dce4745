"""Launches of a chain of short kernels that overlap: programmatic dependent launch of Hopper on.

A kernel launched so may start while the one before it in the stream still runs; it must wait for it
before it touches memory, which `wait_for_inputs` does. What overlaps is the launch itself, and what
a kernel does before it waits: it may read weights, and what the kernel two before it wrote, past
the first-level cache (".cg"), since its predecessor let it start only after waiting in turn. Every
program calls `wait_for_inputs`, also one that has nothing to do: a kernel that ended before its
predecessor would let its successor read too early. Captured by CUDA graphs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def dependent(tensor: Tensor) -> dict[str, bool]:
    """Launch arguments of a kernel with a DEPENDENT constant, for the device of that tensor."""
    if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0):
        return {"DEPENDENT": True, "launch_pdl": True}
    return {"DEPENDENT": False}


@triton.jit
def wait_for_inputs(DEPENDENT: tl.constexpr):
    """Waits until all earlier kernels have ended, then lets the next one start."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
