"""An answer's text through the parser of its parts, cut anywhere."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tasuki.server.text.answer_parts import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Reasoning,
)
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.stop_strings import NO_STOPS, StopRule
from tasuki.server.text.text_answer import Piece
from tasuki.server.text.thinking import Thinking


@dataclass(frozen=True)
class Call:
    """arguments: their text. ended: the model wrote the call to its end."""

    name: str
    arguments: str
    ended: bool = True

    @property
    def value(self) -> Any:
        return json.loads(self.arguments)


@dataclass(frozen=True)
class Parsed:
    """All of an answer but the ids of its calls."""

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
) -> Parsed:
    """Checks the order of the parts, too."""
    parser = AnswerParser(thinking, tools, parallel_calls=parallel_calls, stops=stops)
    items: list[AnswerItem] = []
    for piece in pieces:
        items += parser.push(Piece(piece, None))
    return collected([*items, *parser.finish()])


def collected(items: Sequence[AnswerItem]) -> Parsed:
    reasoning, content, calls = "", "", []
    arguments: list[str] = []
    ended: list[bool] = []
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
            case CallEnd(number):
                assert number == len(calls) - 1 and not ended[-1]
                ended[-1] = True
    return Parsed(reasoning, content, tuple(map(Call, calls, arguments, ended)))
