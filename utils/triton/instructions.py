"""Instructions of a GPU that kernels share: overlapping launches and prefetches.

Whether kernels of this process have a GPU's instructions: Triton's interpreter, by which a CPU
runs them in tests, has none, and what is written in instructions has a twin in the language.

Launches of a chain of short kernels that overlap: programmatic dependent launch of Hopper on.

A kernel launched so may start while the one before it in the stream still runs. Before it touches
anything but weights it waits for that one, which had waited in turn: all earlier kernels have ended
then, however they were launched. What overlaps is the launch, half a microsecond to one. Every
program waits, also one that has nothing to do: a kernel that ended before its predecessor would let
its successor read too early. CUDA graphs capture such launches.

A hint to a GPU's memory: bring a run of bytes into the L2 cache while other work goes on.

It changes no value and holds up nobody, so it may come before a wait for the kernel that writes
those bytes. What it fetches competes with what others read: half a program's bytes, asked for while
that program has nothing else to load, gain; all of them drive each other out of the cache. Only for
Hopper and later, where `dependent` allows it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

HAS_INSTRUCTIONS = tl.constexpr(not triton.knobs.runtime.interpret)


def dependent(tensor: Tensor) -> dict[str, bool]:
    """Return the launch arguments of a kernel with a DEPENDENT constant, for the device of that
    tensor."""
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
    """Let the next kernel start, also before this one has waited. REQUIRES: this kernel writes
    nothing that the next one touches before its wait."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait():
    """Waits until all earlier kernels have ended."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(pointer, BYTES: tl.constexpr):
    """BYTES from `pointer` on, both multiples of 16; asked for by one thread of the program."""
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
