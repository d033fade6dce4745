"""Finds kernels that take more resources than recorded; a commit must record such growth."""

from typing import Any

Table = dict[str, dict[str, dict[str, int]]]
"""Kernel name, then architecture ("sm_90"), then resource name, to its number."""


def growth(recorded: Table, measured: Table) -> list[str]:
    """One line a kernel, architecture or number that is missing, left over or has grown. Fewer
    resources than recorded are no fault."""
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
