"""Growing texts: each shape makes a text of any length that may be hard for some reader.

All functions are pure. A text has about the length asked for. Its end may be cut off, as an
answer's end may be.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import TypeAlias

Shape: TypeAlias = Callable[[int], str]
"""Maker of a text of a given length in characters."""

OPEN_JSON = '<tool_call>\n{"name": "f", "arguments": {'
OPEN_VALUE = "<tool_call>\n<function=f>\n<parameter=a>\n"


def repeated(unit: str, before: str = "") -> Shape:
    def shape(length: int) -> str:
        return (before + unit * (length // len(unit) + 1))[:length]

    return shape


def _keys(before: str) -> Shape:
    def shape(length: int) -> str:
        pieces = [before]
        size = len(before)
        for number in count():
            if size >= length:
                break
            pieces.append(f'"k{number}":{number},')
            size += len(pieces[-1])
        return "".join(pieces)[:length]

    return shape


def _parameters(length: int) -> str:
    """Return one call in which every parameter has another name, cut at `length` characters."""
    pieces = ["<tool_call>\n<function=f>\n"]
    size = len(pieces[0])
    for number in count():
        if size >= length:
            break
        pieces.append(f"<parameter=k{number}>\n1\n</parameter>\n")
        size += len(pieces[-1])
    return "".join(pieces)[:length]


def _ended(before: str, unit: str, behind: str) -> Shape:
    def shape(length: int) -> str:
        transfer_id = max(0, length - len(before) - len(behind))
        return (
            before
            + (unit * (transfer_id // len(unit) + 1))[: transfer_id // len(unit) * len(unit)]
            + behind
        )

    return shape


TEXTS: Mapping[str, Shape] = {
    # Plain text.
    "one word": repeated("a"),
    "words": repeated("it was a fine morning. "),
    "white space": repeated(" "),
    "lines": repeated("\n"),
    "emoji": repeated("\U0001f600"),
    "halves of characters": repeated("\ud83d"),
    "digits": repeated("1"),
    "private marks": repeated("\ue000\ue001"),
    # JSON and almost JSON.
    "open brackets": repeated("[", '{"a":'),
    "open braces": repeated('{"a":'),
    "pairs of brackets": repeated("[],", '{"a":['),
    "closed brackets": repeated("]"),
    "quotes": repeated('"'),
    "empty strings": repeated('"",', "["),
    "escapes": repeated("\\", '"'),
    "escaped quotes": repeated('\\"', '{"a":"'),
    "escapes of halves": repeated("\\ud83d", '{"a":"'),
    "keys": _keys("{"),
    "commas": repeated(",", '{"a":['),
    "slashes": repeated("/"),
    # Patterns.
    "groups": repeated("(a|", ""),
    "zeros in an escape": repeated("0", "\\x{"),
    "dollars": repeated("\\\\$"),
    "tags of names": repeated("a-"),
    # Tags, whole and half.
    "half tags": repeated("<tool_call"),
    "half ends": repeated("</tool_call"),
    "half thoughts": repeated("</thin"),
    "half names": repeated("<|im_end|"),
    "opening tags": repeated("<tool_call>"),
    "open calls": repeated("<tool_call>{"),
    "open functions": repeated("<tool_call><function="),
    "open lists in calls": repeated('<tool_call>{"x":['),
    "open texts in calls": repeated('<tool_call>{"x":[\\"'),
    "white space in a tag": repeated(" ", "<tool_call>"),
    "white space before a key": repeated(" ", "<tool_call>{"),
    "white space behind a call": repeated(" ", "<tool_call>{}"),
    "white space in a thought": repeated("\n", "<think>so"),
    "thoughts": repeated("so it was\n", "<think>"),
    "calls in JSON": repeated('<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    "calls in tags": repeated("<tool_call><function=f></function></tool_call>"),
    # One growing call in the answer.
    "arguments": _keys(OPEN_JSON),
    "arguments before the name": repeated("[],", '<tool_call>{"arguments": ['),
    "a text before the name": repeated("a\\n", '<tool_call>{"arguments": "'),
    "an unknown key's value": repeated("[],", '<tool_call>{"x": ['),
    "a key without end": repeated("a", '<tool_call>{"'),
    "a name without end": repeated("a", '<tool_call>{"name": "'),
    "escapes in a name": repeated('\\"', '<tool_call>{"name": "'),
    "many keys before the name": _keys("<tool_call>{"),
    "a number without end": repeated("1", '<tool_call>{"x": '),
    "escapes in arguments": repeated("\\ud83d\\x\n", OPEN_JSON + '"a":"'),
    "a word in arguments": repeated("NaN,", OPEN_JSON + '"a":['),
    "arguments that nest": repeated("[", OPEN_JSON + '"a":'),
    "behind the arguments": repeated("a", '<tool_call>{"name": "f", "arguments": {}, '),
    "a function's name": repeated("a", "<tool_call><function="),
    "white space between parameters": repeated(" ", "<tool_call><function=f>"),
    "letters between parameters": repeated("a", "<tool_call><function=f>"),
    "half parameters": repeated("<paramete", "<tool_call><function=f>"),
    "parameters": _parameters,
    "a value": repeated("it was ", OPEN_VALUE),
    "a value's white space": repeated(" ", OPEN_VALUE),
    "a value's ends": repeated("</parameter>", OPEN_VALUE),
    "a value's near ends": repeated("\n</parameter>\n<parameter=a>", OPEN_VALUE),
    "a value's functions": repeated("</function>", OPEN_VALUE),
    "a value's lines with tags": repeated("\n<parameter=b>x", OPEN_VALUE),
    "a value's damaged ends": repeated("\n</param\n</param/>", OPEN_VALUE),
    "parameters often": repeated(
        "<parameter=a>\n1\n</parameter>\n<parameter=b>\n1\n</parameter>\n",
        "<tool_call><function=f>\n",
    ),
    "functions without a call": repeated("\n<function=f>"),
    "ends behind a call": repeated("</function></tool_call>", "<tool_call><function=f>"),
    "behind a value's end": repeated(" ", OPEN_VALUE + "1</parameter>"),
    "behind a function's end": repeated(" ", OPEN_VALUE + "1</parameter></function>"),
    "a name behind its arguments": _ended(
        '<tool_call>{"arguments": "', "it was ", '", "name": "f"}</tool_call>'
    ),
    "an answer behind a thought": repeated("it was ", "<think>so</think>\n\n"),
    "a value in Python's spelling": _ended(
        "<tool_call><function=f><parameter=b>[None", ", 'a'", "]</parameter></function></tool_call>"
    ),
    "numbers that are none": _ended(
        "<tool_call><function=f><parameter=b>[NaN", ", NaN", "]</parameter></function></tool_call>"
    ),
    "a list for a value": repeated("[],", OPEN_VALUE.replace("=a", "=b") + "["),
}
