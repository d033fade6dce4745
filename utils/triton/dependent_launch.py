"""Launches of a chain of short kernels that overlap: programmatic dependent launch of Hopper on.

A kernel launched so may start while the one before it in the stream still runs. Before it touches
anything but weights it waits for that one, which had waited in turn: all earlier kernels have ended
then, however they were launched. What overlaps is the launch, half a microsecond to one. Every
program waits, also one that has nothing to do: a kernel that ended before its predecessor would let
its successor read too early. CUDA graphs capture such launches.
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
    """Waits until all earlier kernels have ended, then lets the next one start: before, its
    programs would only take up room."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def start_next():
    """Lets the next kernel start, also before this one has waited. Only where this kernel writes
    nothing that the next one touches before it has waited."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait():
    """Waits until all earlier kernels have ended."""
    tl.extra.cuda.gdc_wait()
