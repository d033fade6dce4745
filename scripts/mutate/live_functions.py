"""What functions do is changed where they live, so that a mutant needs no new import.

Pure but for the functions it changes. Only code inside functions differs in a mutant; what was made
of a function while its module was imported stays as it was, so a mutant that nobody notices here
may be noticed after an import.
"""

from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType


class UnlikeFunctions(ValueError):
    """The two texts do not have the same functions in the same order."""


def change(functions: Sequence[FunctionType], path: str, before: str, after: str) -> None:
    """Those of `path`, whose text is `before`, do what they do in `after`. Raises UnlikeFunctions,
    and SyntaxError, before any is changed."""
    old = list(_codes(compile(before, path, "exec")))
    new = list(_codes(compile(after, path, "exec")))
    if [code.co_qualname for code in old] != [code.co_qualname for code in new]:
        raise UnlikeFunctions(path)
    if any(one.co_freevars != other.co_freevars for one, other in zip(old, new, strict=True)):
        raise UnlikeFunctions(path)
    changed = dict(zip(map(_place, old), new, strict=True))
    for function in functions:
        code = function.__code__
        if code.co_filename == path and (replacing := changed.get(_place(code))) is not None:
            function.__code__ = replacing


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Of what is defined in it, in the order of the text."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno
