"""Lark rules for one parameter written between tags: the texts the call parser reads as values of a
shape (accepted values, see tagged_value.py).

Pure functions. Plain texts and JSON values are separate terminals, and no first character may begin
both. A string is therefore excluded if its text begins like a list and a list is allowed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tasuki.model.grammar.compiled_grammar import options_of
from tasuki.model.grammar.held_schema import DEFINITIONS
from tasuki.server.text.parsing.parameter_types import ANY

from .asked_grammar import literal
from .tagged_value import FREE, Shape, joined

_Letters = dict[str, "_Letters"]
"""A tree of tags: the possible continuations, by the next character."""
LONGEST_QUOTED = 4096
"""Largest number of characters of a string in quotes. A string is written in quotes if the call
parser would read its plain text as another value."""

_ENDS = ("/param", "/func", "/tool_call", "/toolcall", "parameter=")
"""Beginnings of the tags known to the call parser (parsing/call_reader.py), without their first
character `<`. Tags may be in lower or upper case. The first character occurs nowhere else in
them."""
_NUMBERS = frozenset({"integer", "number"})
_SPACE = r"[\s\x1c-\x1f]*"
_INTEGER, _FRACTION = "-?(0|[1-9][0-9]{0,99})", r"(\.[0-9]{1,99})?([eE][+-]?[0-9]{1,2})?"
# Number of any length, as taken by a reader.
_READ_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_READ_WORDS: Mapping[bool | None, str] = {
    None: "[nN][uU][lL][lL]",
    True: "[tT][rR][uU][eE]",
    False: "[fF][aA][lL][sS][eE]",
}
_TYPES_OF_WORDS: Mapping[bool | None, str] = {None: "null", True: "boolean", False: "boolean"}
_FIRST_LETTERS = {"array": r"\[", "object": r"\{", "string": '"', "number": "[0-9-]"}


def _letters(tags: Iterable[str]) -> _Letters:
    found: _Letters = {}
    for tag in tags:
        inner = found
        for letter in tag:
            inner = inner.setdefault(letter, {})
    return found


def _begun(letters: _Letters) -> str:
    """Return a regular expression of the incomplete beginnings of tags. letters: tree of the
    tags."""
    ways = [_letter(letter) + _begun(inner) for letter, inner in letters.items() if inner]
    return f"({'|'.join(ways)})?" if ways else ""


def _missed(letters: _Letters) -> str:
    """Return a regular expression of a tag's beginning followed by one character. The character
    neither continues a tag nor begins one. letters: tree of the tags."""
    ways = [f"[^<{''.join(map(_either_case, letters))}]"]
    ways += [_letter(letter) + _missed(inner) for letter, inner in letters.items() if inner]
    return f"({'|'.join(ways)})"


def _letter(letter: str) -> str:
    cases = _either_case(letter)
    return f"[{cases}]" if letter.isalpha() else cases


def _either_case(letter: str) -> str:
    if letter == "/":
        return "\\/"
    return letter + letter.upper() if letter.isalpha() else letter


def _any_text() -> str:
    """Return a regular expression of any text without a tag ending it. The expression uses no
    complement, because llguidance cannot combine one with a bound of a thousand characters."""
    begun, missed = _begun(_letters(_ENDS)), _missed(_letters(_ENDS))
    return f"/([^<]|(<{begun})*<{missed})*(<{begun})*/"


ANY_TEXT = "ANY_TEXT"
"""Name of the Lark terminal for every text without a tag read as its end."""
ANY_TEXT_RULE = f"{ANY_TEXT}: {_any_text()}"


def parameter_rules(
    rule: str,
    opening: str,
    end: str,
    shape: Shape,
    read_as: frozenset[str],
    value: Mapping[str, Any],
) -> Iterator[str]:
    """Yield the rules of a parameter; none if no value can be written. rule: name of the first
    rule. opening: Lark term before the parameter's text. end: text after it. shape: the accepted
    values. read_as: JSON types the call parser may read the text as. value: schema of the value,
    definitions included. Raises GrammarError."""
    text = _text(shape, read_as)
    if text is None:
        types = shape.all_types & read_as
        if types:
            held = value if types == shape.all_types else _only(value, types)
            yield f"{rule}: {opening} %json {_dumped(held)} {literal(end)}"
        return
    beside = _json_beside(shape, read_as)
    if beside:
        yield f"{rule}: {opening} ({rule}_text | {rule}_json)"
        yield f"{rule}_json: %json {_dumped(_only(value, beside))} {literal(end)}"
    else:
        yield f"{rule}: {opening} {rule}_text"
    if FREE in text:
        free = f"{rule}_free".upper()
        yield f"{free}: {joined([ANY_TEXT, *_read_otherwise(shape, read_as)])}"
        text = text.replace(FREE, free)
    yield f"{rule}_text[lazy]: {text} {literal(end)}"


def _text(shape: Shape, read_as: frozenset[str]) -> str | None:
    """Return the terminal of values written without quotes or brackets. Return None if all values
    are written as JSON. read_as: JSON types the call parser may read the text as."""
    if shape.strings is None or "string" not in read_as:
        return None
    if _takes_any_text(shape, read_as):
        return ANY_TEXT
    found = [joined(shape.strings)] if shape.strings else []
    for word in (None, True, False):
        if word in shape.words and _TYPES_OF_WORDS[word] in read_as:
            found.append(literal(json.dumps(word)))
    numbers = shape.types & read_as & _NUMBERS
    if numbers and not shape.bounded & _NUMBERS:
        found.append(f"/{_INTEGER}{_FRACTION if 'number' in numbers else ''}/")
    return f"({' | '.join(found)})" if found else None


def _takes_any_text(shape: Shape, read_as: frozenset[str]) -> bool:
    """Return True if every text is an accepted value, for each of the types the call parser may
    read it as (`read_as`)."""
    open_types = (shape.types - shape.bounded) | {"string"}
    if None in shape.words:
        open_types |= {"null"}
    if shape.words >= {True, False}:
        open_types |= {"boolean"}
    return shape.strings == (FREE,) and read_as <= open_types


def _json_beside(shape: Shape, read_as: frozenset[str]) -> frozenset[str]:
    """Return the JSON types of accepted values written as JSON, beside values in the terminal of
    _text()."""
    if _takes_any_text(shape, read_as):
        return frozenset()
    types = shape.types & read_as
    found = types - _NUMBERS | (types & _NUMBERS if shape.bounded & _NUMBERS else frozenset())
    return found | {"string"} if read_as == ANY else found


def _read_otherwise(shape: Shape, read_as: frozenset[str]) -> Iterator[str]:
    """Yield Lark terms to exclude some plain strings. Excluded are texts the call parser would read
    as a value outside the shape, and texts beginning like JSON."""
    for word, letters in _READ_WORDS.items():
        if word not in shape.words and _TYPES_OF_WORDS[word] in read_as:
            yield f"~/{_SPACE}{letters}{_SPACE}/"
    first = sorted(read_as & {"array", "object"})
    numbers = read_as & _NUMBERS
    bounded = bool(shape.bounded & _NUMBERS)
    if numbers & shape.types and bounded:
        first.append("number")
    elif numbers and (bounded or not numbers <= shape.types):
        yield f"~/{_SPACE}{_READ_NUMBER}{_SPACE}/"
    if read_as == ANY:
        first.append("string")
    if first:
        letters = "|".join(_FIRST_LETTERS[name] for name in first)
        yield f"~/{_SPACE}({letters})(?s:.*)/"


def _only(schema: Mapping[str, Any], types: frozenset[str]) -> dict[str, Any]:
    """Return the schema restricted to values of these types. It still contains its definitions, for
    references."""
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    inner = {name: value for name, value in schema.items() if name not in definitions}
    bounds = {"maxLength": LONGEST_QUOTED} if "string" in types else {}
    return {**definitions, "allOf": [inner, {"type": sorted(types), **bounds}]}


def _dumped(schema: Mapping[str, Any]) -> str:
    return json.dumps(options_of(schema))
