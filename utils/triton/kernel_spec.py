"""What the ahead-of-time check needs to compile one specialisation of a Triton kernel.

Owns only the description; scripts/compile_kernels compiles it. Does not import triton, so that the
CPU path may import it, and nothing of launch grids or values.

What compiled code needs to launch a kernel that Triton compiled.
"""

from collections.abc import Mapping
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

    @staticmethod
    def of(
        name: str,
        kernel: Any,
        constants: Mapping[str, object],
        num_warps: int,
        num_stages: int = 3,
        *,
        pointers: str = "*bf16",
        fp32: str = "",
        i32: str = "",
        **types: str,
    ) -> "KernelSpec":
        """By the names that this project's kernels give their arguments: eps and scale are fp32
        numbers, what the kernel does not specialise is an i32, other strides are multiples of 16.
        types: what else is none of `pointers`. fp32, i32: pointers to those, separated by
        blanks."""
        given = dict.fromkeys(fp32.split(), "*fp32") | dict.fromkeys(i32.split(), "*i32") | types
        for param in kernel.params:
            if param.name in constants or param.name in given:
                continue
            if param.do_not_specialize:
                given[param.name] = "i32"
            elif param.name.endswith("stride"):
                given[param.name] = "i32:16"
            else:
                given[param.name] = "fp32" if param.name in ("eps", "scale") else pointers
        return KernelSpec(name, kernel, given, dict(constants), num_warps, num_stages)


KernelHandle = tuple[int, int, int]
"""The driver's handle, warps, and bytes of shared memory."""


def kernel_handle(compiled: Any) -> KernelHandle:
    """compiled: what a launch returned; it must outlive whoever uses the handle."""
    return compiled.function, compiled.metadata.num_warps, compiled.metadata.shared
