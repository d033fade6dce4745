"""Helpers giving an answer's text, cut anywhere, to the parser of its reasoning, content and tool
calls."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tasuki.engine.messages import FinishReason, Usage
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.stop_strings import NO_STOPS, StopRule
from tasuki.server.text.text_answer import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Ending,
    Piece,
    Reasoning,
    Thinking,
)

_USAGE = Usage(0, 0, None, None, "local", False, 0.0, 0.0)
BY_ITSELF = Ending(FinishReason.STOP, 0, _USAGE)
BY_LENGTH = Ending(FinishReason.LENGTH, 0, _USAGE)
BY_STOP = Ending(FinishReason.STOP, 0, _USAGE, "a stop string")


@dataclass(frozen=True)
class Call:
    """A parsed tool call. arguments: its arguments as text. is_cut: like in CallEnd."""

    name: str
    arguments: str
    is_cut: bool = False

    @property
    def value(self) -> Any:
        return json.loads(self.arguments)


@dataclass(frozen=True)
class Parsed:
    """The parts of a parsed answer, without the ids of its tool calls."""

    reasoning: str
    content: str
    calls: tuple[Call, ...]


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    places = [0, *sorted(place % (len(text) + 1) for place in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def parsed(
    pieces: Sequence[str],
    tools: Sequence[Mapping[str, Any]] = (),
    thinking: Thinking = Thinking.NEVER,
    *,
    parallel_calls: bool = True,
    stops: StopRule = NO_STOPS,
    ending: Ending = BY_ITSELF,
) -> Parsed:
    """Parse the text `pieces`, check the order of the parts, and return them."""
    parser = AnswerParser(thinking, tools, parallel_calls=parallel_calls, stops=stops)
    items: list[AnswerItem] = []
    for piece in pieces:
        items += parser.push(Piece(piece, None))
    return collected([*items, *parser.finish(ending)])


def collected(items: Sequence[AnswerItem]) -> Parsed:
    reasoning, content, calls = "", "", []
    arguments: list[str] = []
    ended: list[bool] = []
    cut_off: list[bool] = []
    ids = set()
    for item in items:
        match item:
            case Reasoning(text):
                assert text and not content and not calls
                reasoning += text
            case Content(text):
                assert text and (not calls or ended[-1])
                content += text
            case CallBegin(number, name=name, id=id):
                assert number == len(calls) and all(ended) and id not in ids
                ids.add(id)
                calls.append(name)
                arguments.append("")
                ended.append(False)
            case CallArguments(number, text):
                assert text and number == len(calls) - 1 and not ended[-1]
                arguments[-1] += text
            case CallEnd(number, is_cut):
                assert number == len(calls) - 1 and not ended[-1]
                ended[-1] = True
                cut_off.append(is_cut)
    assert all(ended)
    return Parsed(reasoning, content, tuple(map(Call, calls, arguments, cut_off)))


def every_cut(text: str, tools: Sequence[Mapping[str, Any]], **asked: Any) -> Parsed:
    """Parse the text whole, letter by letter, and cut in two at every place. Assert equal parts,
    and return them."""
    whole = parsed([text], tools, **asked)
    assert parsed(list(text), tools, **asked) == whole
    for place in range(len(text)):
        assert parsed([text[:place], text[place:]], tools, **asked) == whole, text[:place]
    return whole
