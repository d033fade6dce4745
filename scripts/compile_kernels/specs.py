"""Finds every KernelSpec of the package: what the modules of these folders describe."""

import importlib
import pkgutil
from collections.abc import Iterator

from tasuki.utils.triton.kernel_spec import KernelSpec

FOLDERS = (
    "tasuki.model.ops",
    "tasuki.engine.parallel",
    "tasuki.engine.tiers.gpu",
    "tasuki.transfer.windows",
    "tasuki.transfer.precision",
    "tasuki.transfer.transports.nvlink",
)


class KernelSpecError(ValueError):
    """A spec that cannot be compiled; the message names it and the mend."""


def find_specs() -> list[KernelSpec]:
    """All specs by name. Raises KernelSpecError where two share one."""
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
    """Modules that define compile_specs; helpers without kernels of their own have none."""
    for folder in FOLDERS:
        package = importlib.import_module(folder)
        for found in pkgutil.walk_packages(package.__path__, prefix=f"{folder}."):
            if hasattr(importlib.import_module(found.name), "compile_specs"):
                yield found.name
