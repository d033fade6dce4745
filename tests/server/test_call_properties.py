"""Tests of random calls over random schemas, cut at every letter and damaged. However the text is
cut, the parts are the same and arguments parse. No parameter holds the tag of another.

`TASUKI_CALLS=200 pytest tests/server/test_call_properties.py` runs them all; the default runs some.
"""

import json
import os
import random
import re
from itertools import pairwise
from typing import Any

import pytest

from tasuki.server.text.stop_strings import NO_STOPS, StopRule
from tasuki.server.text.text_answer import Thinking
from tests.harness.answer_pieces import BY_ITSELF, BY_LENGTH, BY_STOP, Parsed, parsed
from tests.harness.written_calls import DAMAGES, WrittenCall, random_call

CALLS = int(os.environ.get("TASUKI_CALLS", "20"))
ALL = CALLS > 20
_KEY_TAGS = ("<parameter=path>\n", "<parameter=content>\n", "<parameter=mode>\n")


def _made(seed: int) -> WrittenCall:
    return random_call(random.Random(seed), in_tags=seed % 3 != 0)


def _parsed(text: str, call: WrittenCall, ending: Any, seed: int) -> Parsed:
    """Check for equal parts from the whole text, from letters and from pieces; return the parts."""
    tools = [call.tool]
    whole = parsed([text], tools, ending=ending)
    assert parsed(list(text), tools, ending=ending) == whole, text
    rng = random.Random(seed)
    places = [0, *sorted(rng.randrange(len(text) + 1) for _ in range(4)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert parsed(pieces, tools, ending=ending) == whole, pieces
    return whole


def _begins(part: Any, whole: Any) -> bool:
    """Return true if a value equals another one as far as it has arrived."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and _begins(value, whole[key]) for key, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return len(part) <= len(whole) and all(map(_begins, part, whole))
    if isinstance(whole, str) and isinstance(part, str):
        return whole.startswith(part) or f"{whole}\n".startswith(part)
    return bool(part == whole)


@pytest.mark.parametrize("seed", range(CALLS))
def test_a_call_is_whole_json_wherever_it_is_cut(seed: int) -> None:
    call = _made(seed)
    for ending in (BY_LENGTH, BY_STOP, BY_ITSELF) if ALL else (BY_LENGTH, BY_ITSELF):
        longest = 0
        for end in range(len(call.text) + 1):
            found = _parsed(call.text[:end], call, ending, end)
            for each in found.calls:
                assert not found.content
                if ending is not BY_ITSELF:
                    assert _begins(each.value, call.arguments), (call.text[:end], each)
                    assert len(each.arguments) >= longest, "what came before is there still"
                    longest = len(each.arguments)
            if not found.calls:
                assert found.content.rstrip() in ("", call.text[:end].rstrip())
        assert [each.value for each in found.calls] == [call.arguments]


def _without_tags(seed: int) -> WrittenCall:
    """Return a random call without tags in its values: next to such a value, a damaged tag would be
    ambiguous."""
    rng = random.Random(seed)
    while True:
        call = random_call(rng, in_tags=True)
        values = json.dumps(call.arguments)
        if not any(tag in values for tag in ("parameter", "function", "tool_call")):
            return call


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "none"])
@pytest.mark.parametrize("seed", range(CALLS) if ALL else range(1, 20, 6))
def test_a_damaged_call_keeps_its_parameters_apart(seed: int, damage: str) -> None:
    call = _without_tags(seed)
    text = DAMAGES[damage](call.text)
    assert text != call.text
    ends = range(len(text) + 1) if ALL else [*range(0, len(text), 7), len(text)]
    for end in ends:
        found = _parsed(text[:end], call, BY_LENGTH, end)
        for each in found.calls:
            for value in each.value.values():
                assert not any(tag in str(value) for tag in _KEY_TAGS), (text[:end], each)
    assert [each.value for each in found.calls] == [call.arguments], text


_FRAGMENTS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<function=act>",
        "<function=other>",
        "</function>",
        "\n",
        "\n",
    ),
    *(
        "<parameter=path>",
        "<parameter=mode>",
        "</parameter>",
        "</param>",
        "</Parameter",
        "</tool_c",
    ),
    *(
        '<tool_call>{"x": ["',
        '<tool_call>{"name": "act", "arguments": ',
        "\n</tool_call>",
        " " * 250,
    ),
    *("n" * 250, "<parameter=other>\n", "see\n<parameter=path>\nBath\n</parameter>\n"),
    *(" ", "a", "x y", "3", "{", "}", '"', '{"name": "act", "arguments": {"path": "', '"}}', "</"),
    *("<think>", "</think>", "null", "[1]", "\\", "\\ud83d", "tru", ":", ",", '"arguments": '),
)


@pytest.mark.parametrize("seed", range(CALLS))
def test_any_text_is_read_alike_however_it_comes(seed: int) -> None:
    """Read cut tags in every order, after thoughts and inside them."""
    rng = random.Random(seed)
    tool = random_call(rng, in_tags=True).tool
    for _ in range(40):
        text = "".join(rng.choice(_FRAGMENTS) for _ in range(rng.randrange(1, 26)))
        asked: dict[str, Any] = {
            "thinking": rng.choice(list(Thinking)),
            "ending": rng.choice((BY_ITSELF, BY_LENGTH, BY_STOP)),
            "parallel_calls": rng.random() < 0.7,
            "stops": StopRule(("x y",)) if rng.random() < 0.5 else NO_STOPS,
        }
        whole = parsed([text], [tool], **asked)
        assert parsed(list(text), [tool], **asked) == whole, text
        place = rng.randrange(len(text) + 1)
        assert parsed([text[:place], text[place:]], [tool], **asked) == whole, (text, place)
        is_open = asked["thinking"] is Thinking.OPENED and not re.search("</|<think|<fun", text)
        if is_open and not whole.calls:
            assert whole.reasoning == text.lstrip()
        assert all(isinstance(call.value, dict) for call in whole.calls)
        # No tag appears more often in the output than in the input.
        shown = whole.reasoning + whole.content
        assert all(shown.count(tag) <= text.count(tag) for tag in _FRAGMENTS if "<" in tag)
