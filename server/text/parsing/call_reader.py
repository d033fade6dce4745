"""The common part of the formats in which models write a tool call between its tags."""

from enum import Enum
from typing import Protocol
from uuid import uuid4

from tasuki.server.text.answer_parts import AnswerItem, CallArguments, CallBegin

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_TAG = "<function="
"""Begins a call whose arguments are between tags; one of JSON begins with a brace."""


class CallState(Enum):
    """NO_CALL: the text is no call in this format, and nothing of it was given out."""

    READING = "reading"
    ENDED = "ended"
    NO_CALL = "no call"


class CallReader(Protocol):
    """Fed the text behind a call's opening tag, in pieces. left: text behind the call, closing tag
    included, once it ENDED; all of the text where it is NO_CALL."""

    state: CallState
    left: str

    def push(self, text: str) -> list[AnswerItem]:
        """The parts of the call that are certain now. REQUIRES: it is READING."""
        ...

    def finish(self) -> list[AnswerItem]:
        """What was held back, where the answer ends before the call does. A call that was not begun
        is NO_CALL then."""
        ...


def call_begin(number: int, name: str) -> CallBegin:
    return CallBegin(number, f"call_{uuid4().hex}", name)


def call_arguments(number: int, text: str) -> list[AnswerItem]:
    return [CallArguments(number, text)] if text else []
