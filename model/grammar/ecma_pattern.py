"""Translation of JSON Schema's regular expressions (ECMA-262) to the dialect of Rust's regex crate.

Pure functions. A translated pattern matches the same texts as in ECMA-262 with its flag u. Syntax
missing in Rust's dialect, or read differently there, is rejected, and the error names its position.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from .grammar import GrammarError

_Ranges: TypeAlias = tuple[tuple[int, int], ...]

_SURROGATES = range(0xD800, 0xE000)
_LAST = 0x10FFFF
_SPACES = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_NAMED = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": _SPACES,
}
_ANY_BUT_LINE_ENDS = r"[^\n\r\u{2028}\u{2029}]"

# Control characters without a JSON escape here. llguidance ignores one in a pattern.
_UNWRITTEN = frozenset({*range(0x20), 0x7F} - {0x08, 0x09, 0x0A, 0x0C, 0x0D})

_ESCAPE = (
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|u\{[0-9a-fA-F]{1,8}\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[\w=]{1,64}\}|.)"
)
_TOKEN = re.compile(
    rf"(?P<plain>[^\\\[\](){{}}*+?.^$|]+)|(?P<escape>{_ESCAPE})"
    r"|(?P<bracket>\[(?:\\.|[^\]\\])*\])"
    r"|(?P<group>\((?:\?(?:[:=!]|<[=!]|P?<\w{1,64}>|-?[a-zA-Z]{1,8}(?:-[a-zA-Z]{1,8})?[:)]))?)"
    r"|(?P<repeat>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})[?+]?)|(?P<other>.)",
    re.DOTALL,
)
_IN_BRACKETS = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
# Characters with another meaning if they are not escaped.
_BARE = frozenset(r"\[](){}*+?.^$|")
_BARE_IN_BRACKETS = frozenset(r"\[]^-&~")
_WRITTEN = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "0": 0x00}


def rust_pattern(pattern: str) -> str:
    """Return an ECMA-262 pattern in the syntax of Rust's regex crate. Raises GrammarError for a
    pattern without a translation."""
    made: list[str] = []
    may_repeat = False
    for token in _TOKEN.finditer(pattern):
        text, at = token.group(), token.start()
        match token.lastgroup:
            case "plain":
                made.append(text)
            case "escape":
                made.append(_escape(text, at))
            case "bracket":
                made.append(_bracket(text, at))
            case "group":
                made.append(_group(text, at))
            case "repeat":
                if not may_repeat:
                    raise _refused(at, f"{text} has nothing to repeat")
                made.append(_repeat(text, at))
            case _:
                made.append(_other(text, at, pattern))
        may_repeat = token.lastgroup not in ("group", "repeat") and text not in ("^", "$", "|")
    return "".join(made)


def _refused(at: int, complaint: str) -> GrammarError:
    return GrammarError(f"letter {at + 1} of a pattern: {complaint}")


def _other(text: str, at: int, pattern: str) -> str:
    if text == ".":
        return _ANY_BUT_LINE_ENDS
    if text in "{}]":
        if re.compile(r"\{,[0-9]+\}").match(pattern, at):
            raise _refused(at, "{,n} is read in two ways: write {0,n}")
        return f"\\{text}"
    if text == "[":
        raise _refused(at, "[ has no end")
    if text == "\\":
        raise _refused(at, "\\ stands at the end")
    return text


def _repeat(text: str, at: int) -> str:
    if len(text) > 1 and text[-1] == "+":
        raise _refused(at, f"{text} is no quantifier of ECMA-262")
    # Any of several matches will do.
    return text[:-1] if len(text) > 1 and text[-1] == "?" else text


def _group(text: str, at: int) -> str:
    if text in ("(", "(?:", "(?i:", "(?-i:", "(?i)"):
        return text
    if text[2:] in ("=", "!", "<=", "<!"):
        raise _refused(at, f"look-around ({text}) is not supported: write what may stand there")
    if text[-1] == ">":
        return "(?:"
    raise _refused(at, f"the flags {text} are not supported")


def _escape(text: str, at: int) -> str:
    kind = text[1]
    if kind in _OUTSIDE:
        return _OUTSIDE[kind]
    if kind in "pP" and len(text) > 2:
        return text
    code = _code(text, at)
    if code in _UNWRITTEN:
        raise _refused(at, "control characters are not supported")
    return _letter(code, _BARE)


def _code(text: str, at: int) -> int:
    """Return the code point of the character denoted by an escape sequence. at: position of the
    escape in the pattern."""
    kind = text[1]
    if kind in "ux" and len(text) > 2:
        if len(text) == 12:
            return 0x10000 + ((int(text[2:6], 16) - 0xD800) << 10) + int(text[8:], 16) - 0xDC00
        code = int(text[2:].strip("{}"), 16)
        if code in _SURROGATES or code > _LAST:
            raise _refused(at, f"{text} is no letter")
        return code
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    if kind in "123456789k":
        raise _refused(at, f"references to groups ({text}) are not supported")
    if kind in "bB":
        raise _refused(at, f"word boundaries ({text}) are not supported")
    if kind.isascii() and kind.isalnum():
        raise _refused(at, f"{text} is no escape of ECMA-262 that is supported")
    return ord(kind)


def _letter(code: int, bare: frozenset[str]) -> str:
    """Return the character with this code point as written in a Rust pattern. bare: characters in
    need of an escape there."""
    letter = chr(code)
    if letter in bare:
        return f"\\{letter}"
    return letter if letter.isprintable() else f"\\u{{{code:X}}}"


def _is_all_unwritten(between: tuple[int, int]) -> bool:
    low, high = between
    return high <= max(_UNWRITTEN) and all(code in _UNWRITTEN for code in range(low, high + 1))


def _bracket(text: str, at: int) -> str:
    negated = text.startswith("[^")
    first = 1 + negated
    if len(text) == first + 1:
        raise _refused(at, f"{text} is read in two ways: write \\] for the bracket itself")
    ranges: list[tuple[int, int]] = []
    named: list[str] = []
    low: int | None = None
    in_range = behind_class = False
    for token in _IN_BRACKETS.finditer(text, first, len(text) - 1):
        place = at + token.start()
        is_last = token.end() == len(text) - 1
        if token.group() == "-" and not in_range and not is_last and low is not None:
            in_range = True
            continue
        if token.group() == "-" and behind_class and not is_last:
            raise _refused(place, "- is read in two ways: write \\-")
        found = _in_brackets(token.group(), place)
        if in_range:
            if isinstance(found, int) and low is not None and low <= found:
                ranges[-1] = (low, found)
                low, in_range = None, False
                continue
            raise _refused(place, "ends a range that is none")
        low = found if isinstance(found, int) else None
        behind_class = low is None
        if isinstance(found, int):
            ranges.append((found, found))
        elif isinstance(found, str):
            named.append(found)
        else:
            ranges += found
    if not negated and not named and all(map(_is_all_unwritten, ranges)):
        raise _refused(at, "control characters are not supported")
    return f"[{'^' if negated else ''}{_ranges(ranges)}{''.join(named)}]"


def _in_brackets(item: str, at: int) -> int | str | _Ranges:
    """Translate one item of a bracket expression: return a character's code point, the ranges of a
    class, or a class name known in both dialects."""
    if len(item) == 1:
        return ord(item)
    kind = item[1]
    if kind in _CLASSES:
        return _CLASSES[kind]
    if kind in "pP" and len(item) > 2:
        return item
    return 0x08 if kind == "b" else _code(item, at)


def _ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(
        _letter(low, _BARE_IN_BRACKETS)
        if low == high
        else f"{_letter(low, _BARE_IN_BRACKETS)}-{_letter(high, _BARE_IN_BRACKETS)}"
        for low, high in ranges
    )


def _others(ranges: _Ranges) -> _Ranges:
    """Return the ranges of characters outside all given ranges. The given ranges are in order."""
    found, begin = [], 0
    for low, high in ranges:
        if begin < low:
            found.append((begin, low - 1))
        begin = high + 1
    return (*found, (begin, _LAST))


_CLASSES: Mapping[str, _Ranges] = {
    **_NAMED,
    **{kind.upper(): _others(ranges) for kind, ranges in _NAMED.items()},
}
_OUTSIDE: Mapping[str, str] = {
    **{kind: f"[{_ranges(ranges)}]" for kind, ranges in _NAMED.items()},
    **{kind.upper(): f"[^{_ranges(ranges)}]" for kind, ranges in _NAMED.items()},
}
