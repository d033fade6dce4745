"""Makes mutants of a C++ file by its tokens.

Pure. Relies on clang-format: a definition begins in column 0 and its body ends with `}` there.
Binary operators have spaces around them and template brackets do not. A short guard is on one line.
A change with a compile error is no mutant.
"""

import re
from collections.abc import Iterator

from scripts.mutate.mutant import Edit, Mutant, numbered

_DEFINITION = re.compile(r"(?P<name>[A-Za-z_][\w:~]*)\(")
_PAIRS = (
    *((" < ", " <= "), (" > ", " >= "), (" == ", " != "), (" && ", " || "), ("++", "--")),
    *((" + ", " - "), (" * ", " / "), (" << ", " >> "), (" & ", " | "), (" += ", " -= ")),
)
_SWAPS = {old: new for pair in _PAIRS for old, new in (pair, pair[::-1])}
_SWAPS |= {" % ": " * ", " ^ ": " & "}
_TOKENS = sorted(map(re.escape, _SWAPS), key=len, reverse=True)
_TOKEN = re.compile(rf"\b(?:true|false)\b|{'|'.join(_TOKENS)}")
_NUMBER = re.compile(r"(?<![\w.\"])\d+(?![\w.\"])")
_NOT = re.compile(r"!(?=[\w(])")
_GUARD = re.compile(r"if \(.*\) (return\b.*|continue|break|throw\b.*);\s*$")
_CALL = re.compile(r"[a-z][\w.>()\-\[\]:]*\(.*\);\s*$")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|//.*$')


def mutants_of(source: bytes, module: str) -> list[Mutant]:
    """Return the mutants of a C++ source text. module: prefix of their keys."""
    text = source.decode()
    assert text.isascii(), f"{module}: offsets are counted in characters"
    return numbered([edit for body in _bodies(text, module) for edit in _edits(text, *body)])


def _bodies(text: str, module: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name, start and end of each function in the text."""
    start, name, place = -1, "", 0
    for line in text.splitlines(keepends=True):
        fresh = start < 0 and line[0].isalpha() and not line.startswith(("namespace", "using"))
        if fresh and (found := _DEFINITION.search(line)) is not None:
            start, name = place, found["name"]
        end = place + len(line)
        ends_here = line.startswith("}") or (start == place and line.rstrip().endswith(("}", ";")))
        if start >= 0 and ends_here:
            yield f"{module}.{name.replace('::', '.')}", start, end
            start = -1
        place = end


def _edits(text: str, symbol: str, start: int, end: int) -> Iterator[Edit]:
    scope, place, in_body = text[start:end], start, False
    for line in scope.splitlines(keepends=True):
        code = _TEXT.sub(lambda found: " " * len(found[0]), line)
        if in_body or (place == start and line.rstrip().endswith("}")):
            skipped = 0 if in_body else code.index("{")
            for operator, first, last, new in _of_line(code):
                if first >= skipped:
                    yield Edit(symbol, operator, place + first, place + last, new, scope)
        in_body = in_body or line.rstrip().endswith("{")
        place += len(line)


def _of_line(code: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield the mutations of a code line, unless it is a throw: operator, place in the line, and
    the new text."""
    bare = code.strip()
    if bare.startswith(("throw", "#")):
        return
    for found in _TOKEN.finditer(code):
        yield found[0].strip(), *found.span(), _SWAPS.get(found[0], str(found[0] != "true").lower())
    for found in _NUMBER.finditer(code):
        yield "number", *found.span(), str(int(found[0]) + 1)
    for found in _NOT.finditer(code):
        yield "not", *found.span(), ""
    start = code.index(bare)
    whole = start, start + len(bare)
    if _GUARD.match(bare):
        yield "guard", *whole, ";"
    elif _CALL.match(bare) and not bare.startswith(("return", "if", "for", "while", "case")):
        yield "statement", *whole, ";"
