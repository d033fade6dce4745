"""Stop strings and tool calls in text that comes in any pieces."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tasuki.server.text.chat_message import ToolCall
from tasuki.server.text.stop_strings import StopStrings
from tasuki.server.text.tool_call_scanner import ToolCallScanner
from tasuki.server.text.tool_calls import read_tool_call

SCHEMA = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
AS_JSON = '<tool_call>\n{"name": "weather", "arguments": {"city": "<b>", "days": 2}}\n</tool_call>'
AS_XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    places = [0, *sorted(place % (len(text) + 1) for place in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def scan(pieces: Sequence[str]) -> tuple[str, list[ToolCall]]:
    scanner = ToolCallScanner(TOOLS)
    found = [item for piece in pieces for item in scanner.push(piece)] + scanner.finish()
    calls = [item for item in found if isinstance(item, ToolCall)]
    assert scanner.called == bool(calls)
    return "".join(item for item in found if isinstance(item, str)), calls


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 99), max_size=8),
)
def test_text_ends_before_the_first_stop_string_wherever_it_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    scanner = StopStrings(stops)
    out = "".join(scanner.push(piece) for piece in cut(text, cuts))
    held = text[len(out) :]
    assert scanner.found or any(stop.startswith(held) for stop in stops) or not held
    out += scanner.finish()
    starts = [text.find(stop) for stop in stops if stop in text]
    assert scanner.found == bool(starts)
    if starts:
        assert not any(stop in out for stop in stops) and text.startswith(out)
        assert any(text.startswith(stop, len(out)) for stop in stops)
    else:
        assert out == text


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 99), max_size=8),
)
def test_a_kept_stop_string_is_the_text_s_end(text: str, stops: list[str], cuts: list[int]) -> None:
    plain, kept = StopStrings(stops), StopStrings(stops, is_kept=True)
    pieces = cut(text, cuts)
    without = "".join(map(plain.push, pieces)) + plain.finish()
    whole = "".join(map(kept.push, pieces)) + kept.finish()
    assert plain.found == kept.found and text.startswith(whole)
    assert whole[len(without) :] in stops if kept.found else whole == without


def test_only_what_could_begin_a_stop_string_is_held_back() -> None:
    scanner = StopStrings(["<end>"])
    assert [scanner.push(piece) for piece in ("a <", "b <e", "nd", "!")] == [
        "a ",
        "<b ",
        "",
        "<end!",
    ]


@given(cuts=st.lists(st.integers(0, 999), max_size=12))
def test_calls_in_both_spellings_come_out_wherever_the_text_is_cut(cuts: list[int]) -> None:
    content, calls = scan(cut(f"Let me look. \n{AS_JSON}\n{AS_XML}\n", cuts))
    assert content == "Let me look."
    assert calls == [
        ToolCall("weather", {"city": "<b>", "days": 2}),
        ToolCall("weather", {"city": "7", "days": 2}),
    ]


@given(cuts=st.lists(st.integers(0, 999), max_size=12))
def test_what_is_no_call_stays_text(cuts: list[int]) -> None:
    for text in (
        "<tool_call>no</tool_call> and <tool",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 99 + "]" * 99 + "}}</tool_call>",
        "a <tool_call> that never ends \n",
    ):
        assert scan(cut(text, cuts)) == (text, [])


def test_without_tools_nothing_is_held_back() -> None:
    scanner = ToolCallScanner([])
    assert scanner.push(AS_JSON) == [AS_JSON] and scanner.finish() == []


def test_parameters_without_a_schema_are_json_where_they_can_be() -> None:
    parameters = '<parameter=a>\n{"b": 1}\n</parameter>\n<parameter=c>\nx\ny\n</parameter>'
    body = f"<function=f>\n{parameters}\n</function>"
    assert read_tool_call(body, []) == ToolCall("f", {"a": {"b": 1}, "c": "x\ny"})


def test_a_parameter_that_nests_too_deeply_stays_text() -> None:
    deep = "[" * 99 + "]" * 99
    body = f"<function=f>\n<parameter=a>\n{deep}\n</parameter>\n</function>"
    assert read_tool_call(body, []) == ToolCall("f", {"a": deep})
