"""Compiles one spec for one architecture on a machine without a GPU and reads what it takes.

Needs triton with its ptxas and cuobjdump, and a process in which TRITON_INTERPRET is not set.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tasuki.utils.triton.kernel_spec import KernelSpec

from .specs import KernelSpecError

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Resources:
    """Of one thread: registers, and bytes of local memory it spills to; of one block: bytes of
    shared memory."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


def compile_spec(spec: KernelSpec, capability: int) -> Resources:
    """`capability`: 90 for sm_90a, 100 for sm_100a. Raises KernelSpecError."""
    compiled = triton.compile(
        _source(spec),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": spec.num_warps, "num_stages": spec.num_stages},
    )
    return _read(spec.name, compiled.asm["cubin"], compiled.metadata.shared)


def _source(spec: KernelSpec) -> ASTSource:
    names = spec.kernel.arg_names
    described = spec.signature.keys() | spec.constants.keys()
    twice = spec.signature.keys() & spec.constants.keys()
    for wrong, what in (
        (set(names) - described, "is in neither signature nor constants"),
        (described - set(names), "is no argument of the kernel"),
        (twice, "is in both signature and constants"),
    ):
        if wrong:
            raise KernelSpecError(f"{spec.name}: {', '.join(sorted(wrong))} {what}")
    varying = {name for name, kind in spec.signature.items() if kind in ("i32", "i64")}
    settled = {param.name for param in spec.kernel.params if param.do_not_specialize}
    if varying - settled:
        # Triton would compile anew where it is 1 or a multiple of 16, while a client waits.
        raise KernelSpecError(
            f"{spec.name}: {', '.join(sorted(varying - settled))} may be any integer: name it in "
            'do_not_specialize, or end its type in ":16" if launches only pass multiples of 16'
        )
    types = {name: spec.signature.get(name, "constexpr") for name in names}
    aligned = {(index,): _ALIGNED for index, name in enumerate(names) if _is_aligned(types[name])}
    return ASTSource(
        fn=spec.kernel,
        signature={name: kind.split(":")[0] for name, kind in types.items()},
        constexprs=dict(spec.constants),
        attrs=aligned,
    )


def _is_aligned(kind: str) -> bool:
    return kind.endswith(":16") or (kind.startswith("*") and not kind.endswith(":1"))


def _read(name: str, cubin: bytes, shared_bytes: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [_TOOLS / "cuobjdump", "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = _USAGE.search(listing)
    if found is None:
        raise KernelSpecError(f"{name}: cuobjdump reports no resources: {listing.strip()}")
    registers, stack, local = (int(value) for value in found.groups())
    return Resources(registers, stack + local, shared_bytes)
