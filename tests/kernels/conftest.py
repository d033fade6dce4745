"""Kernel tests run on a GPU if there is one, else through Triton's interpreter on the CPU.

The interpreter is chosen before triton is first imported, since `@triton.jit` decides by it. No
file outside model/kernels, pycache/kernels and these tests may therefore import triton.
"""

import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .interpreter import apply_all

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if TRITON_INSTALLED:
        apply_all()


class ModuleWithoutTriton(pytest.Module):
    def collect(self) -> list[pytest.Item]:  # type: ignore[override]
        pytest.skip("triton is not installed: pip install --group dev")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if not TRITON_INSTALLED:
        return ModuleWithoutTriton.from_parent(parent, path=module_path)
    return None


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Return the device of kernel tests' tensors: "cuda" natively, "cpu" under the interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new tensors with NaN, so that parts not written by a kernel do not hold the last test's
    answer."""

    def poison(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, **keywords: Any) -> torch.Tensor:
            tensor = make(*args, **keywords)
            return tensor.fill_(math.nan if tensor.is_floating_point() else -77)

        return made

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))
