"""Kernel tests run on a GPU if there is one, else through Triton's interpreter on the CPU.

The interpreter is chosen before triton is first imported, since `@triton.jit` decides by it. No
file outside model/kernels, pycache/kernels and these tests may therefore import triton.
"""

import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


def loop_bounds_from_tensors() -> None:
    """Allow `range(a loaded scalar)` under triton 3.6's interpreter with numpy 2.4. This numpy
    rejects int() of an array with dimensions."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


def dots_of_bfloat16() -> None:
    """Fix products of bfloat16: Triton 3.6's interpreter holds them as bits and multiplies these as
    integers."""
    import numpy
    from triton.runtime import interpreter

    def operand(handle: Any) -> Any:
        if not handle.dtype.scalar.is_bf16():
            return handle.data
        return (handle.data.astype(numpy.uint32) << 16).view(numpy.float32)

    plain = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if not a.dtype.scalar.is_bf16():
            return plain(self, a, b, d, *options)
        product = numpy.matmul(operand(a), operand(b), dtype=d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def roundings_to_e4m3() -> None:
    """Fix the rounding to e4m3. Triton 3.6's interpreter halves numbers rounded up to a power of
    two, and cuts numbers below e4m3's normal ones."""
    from triton import language
    from triton.runtime import interpreter

    plain = interpreter.InterpreterBuilder.create_fp_to_fp

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        wanted = (language.float32, language.float8e4nv)
        if (source.dtype.scalar, target.scalar) != wanted:
            return plain(self, source, target, rounding)
        codes = torch.from_numpy(source.data.copy()).to(torch.float8_e4m3fn)
        return interpreter.TensorHandle(codes.view(torch.uint8).numpy(), target.scalar)

    interpreter.InterpreterBuilder.create_fp_to_fp = create_fp_to_fp


def patches_once_a_launch() -> None:
    """Patch the language once per launch. Triton 3.6's interpreter patches it at every call of a
    helper. This takes milliseconds each time, a third of these tests' time. The launch's patches
    are enough if they are those of the language and of its core, used by the language's own
    helpers."""
    from triton import language
    from triton.runtime import interpreter

    plain, launched = interpreter._patch_lang, list[object]()
    whole = SimpleNamespace(__globals__={"tl": language, "core": language.core})

    class LaunchScope(interpreter._LangPatchScope):  # type: ignore[misc, name-defined]
        def restore(self) -> None:
            launched.clear()
            super().restore()

    def patch(kernel: Any) -> Any:
        scope = interpreter._LangPatchScope()
        if launched:
            return scope
        scope = LaunchScope()
        scope._changes = plain(whole)._changes
        launched.append(kernel)
        return scope

    interpreter._patch_lang = patch


def names_of_shapes_when_asked() -> None:
    """Make names of shapes only on request. Triton 3.6 writes one for every new tensor, a tenth of
    these tests' time, and no test reads them."""
    from triton.language import core

    def make(self: Any, types: Any, fields: Any = None) -> None:
        self.types = types
        self.fields = fields or [""] * len(types)

    def name(self: Any) -> str:
        pairs = zip(self.fields, self.types, strict=False)
        return "[" + ",".join(f"{field}:{kind}" for field, kind in pairs) + "]"

    core.tuple_type.__init__ = make
    core.tuple_type.name = property(name)


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if TRITON_INSTALLED:
        patches_once_a_launch()
        names_of_shapes_when_asked()
        loop_bounds_from_tensors()
        dots_of_bfloat16()
        roundings_to_e4m3()


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
