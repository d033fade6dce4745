"""What a chat's answer is made of, apart from any API's JSON: reasoning, content and tool calls, in
the order in which the model wrote them.

Immutable values; any thread. Invariants of the parts of one answer: reasoning comes first; the
pieces of a call's arguments are together one JSON object's text, and stand between its CallBegin
and its CallEnd with no other part among them; every call has both; no part is empty text.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .text_answer import Ending


class Reasoning(NamedTuple):
    """A piece of what the model thought before it answered, its tags left out."""

    text: str


class Content(NamedTuple):
    """A piece of the answer that a user reads."""

    text: str


class CallBegin(NamedTuple):
    """number: of the answer's calls, from 0. id: for the message that answers it."""

    number: int
    id: str
    name: str


class CallArguments(NamedTuple):
    """json: a piece of the arguments' text, which may begin and end anywhere in it."""

    number: int
    json: str


class CallEnd(NamedTuple):
    """The call's arguments are one JSON object.

    is_cut: a length or a stop string ended the call, and not the model. lacks: a required parameter
    is not among the arguments."""

    number: int
    is_cut: bool = False
    lacks: bool = False

    @property
    def may_run(self) -> bool:
        return not (self.is_cut or self.lacks)


AnswerItem: TypeAlias = Reasoning | Content | CallBegin | CallArguments | CallEnd


@dataclass(frozen=True)
class ChatEnding:
    """called: the answer holds at least one call, and each may be run. reasoning_tokens: of the
    ending's completion tokens, those before the reasoning's end."""

    ending: Ending
    called: bool
    reasoning_tokens: int

    @property
    def awaits_tools(self) -> bool:
        """OpenAI's `tool_calls`, Anthropic's `tool_use`: the model ended it, with a call."""
        return self.called and not self.ending.is_cut
