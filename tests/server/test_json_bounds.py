"""How many values JSON holds, counted before any of it is built."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.server.text import json_reading
from tasuki.server.text.json_reading import MAX_VALUES, holds_too_many_values
from tests.harness.cpu_growth import cpu_seconds

COMMAS = b"," * (MAX_VALUES + 1)
MOST_MORE = 20
"""How many times the cost of as long a text of plain letters."""
LETTERS = st.text('ab,[{"\\', max_size=6)
VALUES = st.recursive(
    st.one_of(st.integers(0, 9), LETTERS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(LETTERS, inner, max_size=3)
    ),
    max_leaves=12,
)


def counted(body: bytes) -> Callable[[], object]:
    return lambda: holds_too_many_values(body)


@pytest.mark.parametrize("unit", [b'"" ""', b'\\"', b"\\\\", b'","', b'"\\""'])
def test_counting_values_costs_no_more_for_quotes_than_for_letters(unit: bytes) -> None:
    hostile = b'{"a": "' + COMMAS + b'", ' + unit * (1 << 20)
    plain = b'{"a": "' + COMMAS + b'", ' + b"a" * (len(hostile) - len(COMMAS))
    ratio = cpu_seconds(lambda: counted(hostile)) / cpu_seconds(lambda: counted(plain))
    assert ratio <= MOST_MORE


def separators(text: str) -> int:
    """Count commas and opening brackets outside of strings, letter by letter."""
    count, in_string, escaped = 0, False, False
    for letter in text:
        if in_string:
            in_string = escaped or letter != '"'
            escaped = not escaped and letter == "\\"
        else:
            in_string = letter == '"'
            count += letter in ",[{"
    return count


@given(value=VALUES, length=st.integers(2, 9), least=st.integers(0, 3))
def test_letters_of_strings_are_no_values_wherever_a_slice_ends(
    value: Any, length: int, least: int
) -> None:
    text = json.dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reading, "_SLICE", length)
        for most in (separators(text) - 1 - least, separators(text), separators(text) + least):
            patch.setattr(json_reading, "MAX_VALUES", most)
            assert holds_too_many_values(text.encode()) == (separators(text) > most)
