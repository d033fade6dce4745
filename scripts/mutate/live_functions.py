"""What functions do is changed where they live, so that a mutant needs no new import.

Pure but for the functions it changes. Only code inside functions differs in a mutant; what was made
of a function while its module was imported stays as it was, so a mutant that nobody notices here
may be noticed after an import.
"""

from collections import defaultdict
from collections.abc import Sequence
from types import CodeType, FunctionType


class UnlikeFunctions(ValueError):
    """A function that lives is not in both texts."""


def change(functions: Sequence[FunctionType], path: str, before: str, after: str) -> None:
    """Those of `path`, whose text is `before`, do what they do in `after`. Raises UnlikeFunctions,
    and SyntaxError, before any is changed."""
    old, new = _codes(before, path), _codes(after, path)
    changed = {
        (name, one.co_firstlineno): other
        for name, codes in old.items()
        if len(codes) == len(new[name])
        for one, other in zip(codes, new[name], strict=True)
        if one.co_freevars == other.co_freevars
    }
    living = [function for function in functions if function.__code__.co_filename == path]
    # What a mutant leaves out, as a comprehension, is found in the function around it alone.
    unlike = [function for function in living if _place(function) not in changed]
    if unlike:
        raise UnlikeFunctions(f"{path}: {unlike[0].__qualname__}")
    for function in living:
        function.__code__ = changed[_place(function)]


def _codes(source: str, path: str) -> defaultdict[str, list[CodeType]]:
    """Of what is defined in it, by its name, in the order of the text."""
    found: defaultdict[str, list[CodeType]] = defaultdict(list)
    waiting = [compile(source, path, "exec")]
    while waiting:
        inside = [
            constant for constant in waiting.pop().co_consts if isinstance(constant, CodeType)
        ]
        for code in inside:
            found[code.co_qualname].append(code)
        waiting += inside
    return found


def _place(function: FunctionType) -> tuple[str, int]:
    return function.__code__.co_qualname, function.__code__.co_firstlineno
