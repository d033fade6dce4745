"""A hint to a GPU's memory: bring a run of bytes into the L2 cache while other work goes on.

It changes no value and holds up nobody, so it may come before a wait for the kernel that writes
those bytes. What it fetches competes with what others read: half a program's bytes, asked for while
that program has nothing else to load, gain; all of them drive each other out of the cache. Only for
Hopper and later, where `dependent_launch.dependent` allows it.
"""

import triton
import triton.language as tl


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
