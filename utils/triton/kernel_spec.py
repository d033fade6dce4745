"""What the ahead-of-time check needs to compile one specialisation of a Triton kernel.

Owns only the description; scripts/compile_kernels compiles it. Does not import triton, so that the
CPU path may import it, and nothing of launch grids or values.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class KernelSpec:
    """One kernel at one set of argument types and constants. Immutable.

    name       Unique over the whole project, stable: the key in docs/results/kernel_resources.json.
    kernel     The function that `@triton.jit` returned.
    signature  Argument name to Triton type ("*bf16", "*fp32", "i32", "i64", "fp32", ...), for every
               argument that is not in `constants`. Append ":16" where launches only ever pass
               multiples of 16 (a stride, say): Triton specialises on it. Every other integer must
               be in the kernel's do_not_specialize. Pointers are taken to be aligned to 16 bytes
               unless they end in ":1".
    constants  Argument name to value, for every `tl.constexpr` argument, and for an argument that
               launches pass as None or as the integer 1 (Triton makes constants of those).
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, object] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
