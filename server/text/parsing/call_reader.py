"""The common part of the formats in which models write a tool call between its tags."""

from enum import Enum
from typing import Protocol
from uuid import uuid4

from tasuki.server.text.answer_parts import AnswerItem, CallArguments, CallBegin

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_TAG = "<function="
"""Begins a call whose arguments are between tags; one of JSON begins with a brace."""
LONGEST_NAME = 256
"""Characters of a function's name, a parameter's or a key. What has more is no call."""


class CallState(Enum):
    """NO_CALL: the text is no call in this format, and nothing of it was given out."""

    READING = "reading"
    ENDED = "ended"
    NO_CALL = "no call"


class CallReader(Protocol):
    """A reader of the text behind a call's opening tag and white space, in pieces.

    left: text behind the call, closing tag included, once it ENDED; all of the text where it is
    NO_CALL. decided: how many letters of `left` were looked at before the one that showed it to be
    NO_CALL. Invariant: the work for a piece does not grow with the text before it."""

    state: CallState
    left: str
    decided: int

    def letters(self, text: str) -> CallArguments | None:
        """Take text that is only letters of a string, and return them; None where it may be more,
        and push() has to look. As push(), at a part of its cost: most tokens of a call are such."""
        ...

    def push(self, text: str) -> list[AnswerItem]:
        """Return the parts of the call that are certain now. REQUIRES: it is READING."""
        ...

    def finish(self, was_cut: bool) -> list[AnswerItem]:
        """Return the parts held back, where the answer ends before the call does, and close the
        call. One that has not begun is NO_CALL. was_cut: the answer's length or a stop string ended
        it, so that what is written last may lack letters."""
        ...


def call_begin(number: int, name: str) -> CallBegin:
    return CallBegin(number, f"call_{uuid4().hex}", name)


def call_arguments(number: int, text: str) -> list[AnswerItem]:
    return [CallArguments(number, text)] if text else []
