"""GPU instructions shared by kernels: overlapping launches and prefetches.

HAS_INSTRUCTIONS tells kernels of this process if a GPU's instructions exist. Triton's interpreter
runs kernels on a CPU in tests, and has none. Code in instructions therefore has a reference
implementation in the language.

Launches of a chain of short kernels can overlap: programmatic dependent launch, from Hopper on.
Such a kernel may start while the previous one in the stream still runs. Before it touches anything
but weights it waits for the previous one, and the previous one has waited in turn. So all earlier
kernels have ended by then, however they were launched. The overlap hides the launch, half a
microsecond to one. Every program waits, even one without work: a kernel ending before its
predecessor would let its successor read too early. CUDA graphs capture such launches.

A prefetch is a hint to a GPU's memory: bring a run of bytes into the L2 cache during other work. It
changes no value and delays nothing, so it may come before a wait for the kernel writing the bytes.
Its reads compete with other reads. Prefetching half of a program's bytes gains time, if done while
the program has nothing else to load. If all are prefetched, they drive each other out of the cache.
Only for Hopper and later, when `dependent` allows it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

HAS_INSTRUCTIONS = tl.constexpr(not triton.knobs.runtime.interpret)


def dependent(tensor: Tensor) -> dict[str, bool]:
    """Return the launch arguments of a kernel with the constant DEPENDENT, for overlapping launches
    on the tensor's device. Only NVIDIA GPUs from Hopper on overlap launches."""
    if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0):
        return {"DEPENDENT": True, "launch_pdl": True}
    return {"DEPENDENT": False}


@triton.jit
def wait_for_inputs(DEPENDENT: tl.constexpr):
    """Wait until all earlier kernels have ended, then let the next kernel start. An earlier start
    would only let its programs take up room. DEPENDENT: the launch overlaps."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def start_next():
    """Let the next kernel start, even before this kernel has waited. REQUIRES: this kernel writes
    nothing the next one touches before its wait."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait():
    """Wait until all earlier kernels in the stream have ended."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(pointer, BYTES: tl.constexpr):
    """Prefetch BYTES bytes from `pointer` on into the L2 cache. Both are multiples of 16. One
    thread of the program issues the prefetch."""
    tl.inline_asm_elementwise(
        """{
            .reg .pred first;
            .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [pointer.to(tl.int64), BYTES],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
