"""A compiler of one kernel spec for one architecture on a machine without a GPU, and a reader of
the kernel's resources.

Needs triton with its ptxas and cuobjdump, and a process without TRITON_INTERPRET.
"""

import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from tasuki.utils.triton.kernel_spec import KernelSpec

FOLDERS = (
    "tasuki.model.ops",
    "tasuki.engine.parallel",
    "tasuki.engine.tiers.gpu",
    "tasuki.transfer.chunks",
    "tasuki.transfer.precision",
    "tasuki.transfer.transports.nvlink",
)


class KernelSpecError(ValueError):
    """A kernel spec cannot be compiled; the message names it and the fix."""


def find_specs() -> list[KernelSpec]:
    """Return all kernel specs by name. Raises KernelSpecError if two have the same name."""
    specs: dict[str, KernelSpec] = {}
    for module in _modules():
        for spec in importlib.import_module(module).compile_specs():
            if spec.name in specs:
                raise KernelSpecError(
                    f"{module}: a second kernel spec is named {spec.name}: rename one"
                )
            specs[spec.name] = spec
    return [specs[name] for name in sorted(specs)]


def _modules() -> Iterator[str]:
    """Yield the modules defining compile_specs. Helper modules without their own kernels define
    none."""
    for folder in FOLDERS:
        package = importlib.import_module(folder)
        for found in pkgutil.walk_packages(package.__path__, prefix=f"{folder}."):
            if hasattr(importlib.import_module(found.name), "compile_specs"):
                yield found.name


_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled kernel. registers: registers of one thread. spilled_bytes: one
    thread's local memory for spills. shared_bytes: shared memory of one block."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


def compile_spec(spec: KernelSpec, capability: int) -> Resources:
    """Compile a kernel spec and return its resources. `capability`: 90 for sm_90a, 100 for sm_100a.
    Raises KernelSpecError."""
    compiled = triton.compile(
        _source(spec),
        target=GPUTarget("cuda", capability, 32),
        options={
            "num_warps": spec.num_warps,
            "num_stages": spec.num_stages,
            "maxnreg": spec.max_registers,
        },
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
        # Triton would compile anew for 1 or a multiple of 16, while a client waits.
        raise KernelSpecError(
            f"{spec.name}: {', '.join(sorted(varying - settled))} may be any integer: name it in "
            'do_not_specialize, or end its type in ":16" if launches only pass multiples of 16'
        )
    types = {name: spec.signature.get(name, "constexpr") for name in names}
    aligned = {(index,): _ALIGNED for index, name in enumerate(names) if _is_aligned(types[name])}
    source = GluonASTSource if spec.kernel.is_gluon() else ASTSource
    return source(
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


Table = dict[str, dict[str, dict[str, int]]]
"""Resource numbers by kernel name, then architecture ("sm_90"), then resource name."""


def growth(recorded: Table, measured: Table) -> list[str]:
    """Return one text line for each kernel, architecture or number missing, unexpected or grown.
    recorded: numbers in the file. measured: numbers of this build. Fewer resources than recorded
    are no fault."""
    faults = [f"{name}: recorded but gone" for name in sorted(recorded.keys() - measured.keys())]
    for name, by_arch in sorted(measured.items()):
        if name not in recorded:
            faults.append(f"{name}: not recorded")
            continue
        for arch, resources in by_arch.items():
            before: dict[str, Any] = recorded[name].get(arch, {})
            for resource, value in resources.items():
                if resource not in before:
                    faults.append(f"{name} {arch}: {resource} not recorded")
                elif value > before[resource]:
                    faults.append(f"{name} {arch}: {resource} {before[resource]} -> {value}")
    return faults
