"""The input of the ahead-of-time check: one specialisation of a Triton kernel.

Owns only the description; scripts/compile_kernels compiles it. The module does not import triton,
so the CPU path may import it. It knows nothing of launch grids or values.

The module also gives a compiled kernel's handle for launches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class KernelSpec:
    """One kernel at one set of argument types and constants. Immutable.

    name       Unique over the whole project, stable: the key in docs/results/kernel_resources.json.
    kernel     The function returned by `@triton.jit`.
    signature  Argument name to Triton type ("*bf16", "*fp32", "i32", "i64", "fp32", ...), for every
               argument outside `constants`. Append ":16" if launches pass only multiples of 16
               (such as a stride): Triton specialises on it. Every other integer must be in the
               kernel's do_not_specialize. Pointers are aligned to 16 bytes unless they end in ":1".
    constants  Argument name to value, for every `tl.constexpr` argument, and for an argument passed
               by launches as None or as the integer 1 (Triton makes constants of them).
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, object] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int | None = None
    capabilities: tuple[int, ...] = (90, 100)

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
        """Return a spec with types found by this project's argument names. eps and scale are fp32
        numbers, arguments in do_not_specialize are i32, other strides are multiples of 16. types:
        Triton types of other arguments, by name. pointers: type of the remaining arguments. fp32,
        i32: names of arguments with such pointers, separated by blanks."""
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
"""A compiled kernel for launches: the driver's handle, number of warps, and bytes of shared
memory."""


def kernel_handle(compiled: Any) -> KernelHandle:
    """Return the handle of a compiled kernel. compiled: the result of a launch; it must outlive all
    users of the handle."""
    return compiled.function, compiled.metadata.num_warps, compiled.metadata.shared
