"""Corrections and shortcuts of Triton 3.6's interpreter. A correction mends a wrong result. A
shortcut changes no result.

The interpreter spends its time in Python: in types made for every operation, and in checks without
an effect.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch


def apply_all() -> None:
    """Change the interpreter. REQUIRES: triton is installed, and TRITON_INTERPRET is 1."""
    patches_once_a_launch()
    names_of_shapes_when_asked()
    shapes_made_once()
    members_called_directly()
    dtypes_looked_up_once()
    no_overflow_checks_without_effect()
    loop_bounds_from_tensors()
    dots_of_bfloat16()
    roundings_to_e4m3()


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


def shapes_made_once() -> None:
    """Make the values of a shape once. Triton 3.6 makes a tuple of constants for every new tensor
    and every new type, a third of these tests' time. Nothing changes them later."""
    from triton.language import core

    @cache
    def of_tensor(sizes: tuple[int, ...]) -> tuple[Any, Any]:
        count = 1
        for size in sizes:
            count *= size
        return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(count)

    @cache
    def of_block(sizes: tuple[int, ...]) -> tuple[Any, int]:
        if not sizes:
            raise TypeError("0d block_type is forbidden")
        return core.tuple(list(sizes)), core.validate_block_shape(sizes)

    def make_tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        sizes = tuple(kind.shape.values) if kind.is_block() else ()
        self.shape, self.numel = of_tensor(sizes)

    def make_block(self: Any, element_ty: Any, shape: Sequence[Any]) -> None:
        self.element_ty = element_ty
        sizes = shape.values if isinstance(shape, core.tuple) else shape
        self.shape, self.numel = of_block(
            tuple([size.value if isinstance(size, core.constexpr) else size for size in sizes])
        )

    def are_alike(self: Any, other: Any) -> Any:
        values = other.values if isinstance(other, core.tuple) else other
        return core.constexpr(self.values == list(values))

    def are_equal(self: Any, other: Any) -> bool:
        if self is other:
            return True
        if not isinstance(other, core.block_type) or self.shape is not other.shape:
            return False
        return bool(self.element_ty == other.element_ty)

    core.tuple.__eq__ = are_alike
    core.tensor.__init__ = make_tensor
    core.block_type.__init__ = make_block
    core.block_type.__eq__ = are_equal
    core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")


def members_called_directly() -> None:
    """Pass the keywords of a call on as they are. Triton 3.6 copies them at every operation."""
    from triton.language import semantic
    from triton.runtime import interpreter

    def patch(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        own = semantic.TritonSemantic(builder)

        def call(*arguments: Any, _semantic: Any = None, **keywords: Any) -> Any:
            return member(*arguments, _semantic=own, **keywords)

        scope.set_attr(owner, name, call)

    interpreter._patch_attr = patch


def dtypes_looked_up_once() -> None:
    """Keep numpy's dtypes by the names of Triton's. Triton 3.6 makes a table at each look-up, a
    tenth of these tests' time."""
    from triton.language import core
    from triton.runtime import interpreter

    plain: Callable[[Any], Any] = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def look_up(dtype: Any) -> Any:
        scalar = dtype.element_ty if isinstance(dtype, core.block_type) else dtype
        found = known.get(scalar.name)
        if found is None:
            found = known[scalar.name] = plain(scalar)
        return found

    interpreter._get_np_dtype = look_up


def no_overflow_checks_without_effect() -> None:
    """Leave out the checks of integer overflow. Without `debug`, Triton 3.6's interpreter computes
    them in 64 bits and drops their result, a fifth of these tests' time."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
